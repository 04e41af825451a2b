"""How a rank ends.

.venv/bin/python -m pytest tests/benchmarks/test_exit_codes.py
"""

import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.errors import timed_out
from benchmarks.common.run_folder import RunFolder

pytestmark = pytest.mark.real_interpreter  # how an interpreter ends

RANK = """
import atexit, time
from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
atexit.register(time.sleep, 1000)  # as a thread of gloo does that waits for the interpreter, which waits for it
def main():
    print("trained")
    {end}
run_and_exit(main)
"""


@pytest.mark.parametrize("end, code", [("pass", 0), ("raise UserError('no')", 2), ("raise KeyError(1)", 1)])
def test_a_rank_ends_at_once_with_its_output_written(end, code):
    """Protects a run that is done from hanging where the interpreter shuts down (torch 2.10), until its time is up."""
    command = [sys.executable, "-c", RANK.format(end=end)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "trained\n"), done.stderr


@pytest.mark.parametrize(
    ("env", "rank"), [({"RANK": "1", "SLURM_PROCID": "0"}, 1), ({"HOROVOD_RANK": "2"}, 2), ({"RANK": "x"}, 0), ({}, 0)]
)
def test_the_cause_names_the_rank_that_its_launcher_says(tmp_path, env, rank):
    (tmp_path / "run.yaml").write_text("")
    command = [sys.executable, "-c", RANK.format(end="raise UserError('no')")]
    assert subprocess.run(command, cwd=ROOT, env=environment(RUN_DIR=tmp_path, **env), timeout=60).returncode == 2
    (cause,) = RunFolder(tmp_path).causes()
    assert (cause["status"], cause["reason"], cause["rank"]) == ("failed", "no", rank)


def test_a_reader_that_has_gone_is_no_error():
    command = f'{sys.executable} -c "$CODE" | true; exit ${{PIPESTATUS[0]}}'
    env = environment(CODE="import time; time.sleep(1)" + RANK.format(end="pass"))
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("reason", "is_one"),
    [
        ("Timed out waiting 1800000ms for recv operation to complete", True),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", True),
        ("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/rank_1", True),
        ("the loader's workers gave no batch (no shared memory); if only the files are slow, raise --timeout-s", False),
    ],
)
def test_a_rank_has_timed_out_where_its_library_says_so(reason, is_one):
    """Protects the status of a run whose loader failed: the option in the remedy made it a timeout. Mutant: any
    mention of a timeout."""
    assert timed_out(reason) == is_one
