"""How a rank ends.

.venv/bin/python -m pytest tests/benchmarks/test_exit_codes.py
"""

import os
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.train.exit_codes import timed_out

pytestmark = pytest.mark.real_interpreter  # how an interpreter ends

TINY = "--loader synthetic --image-size 32 --global-batch 8 --steps 4 --windows 1 --window-steps 2".split()
TINY += ["--warmup-steps", "1"]
RANK = """
import atexit, time
from benchmarks.common.system.errors import UserError
from benchmarks.common.train.exit_codes import run_and_exit
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


@pytest.mark.parametrize("error", ["UserError", "ValueError"])
def test_the_log_of_a_rank_steers_no_terminal(error):
    """Protects who prints run.log after a run on somebody else's images. Mutant: the streams as they are."""
    command = [sys.executable, "-c", RANK.format(end=f"raise {error}('a' + chr(27) + '[2J.JPEG')")]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert "[2J.JPEG" in done.stderr and "\x1b" not in done.stderr


def test_a_reader_that_has_gone_is_no_error():
    command = f'{sys.executable} -c "$CODE" | true; exit ${{PIPESTATUS[0]}}'
    env = environment(CODE="import time; time.sleep(1)" + RANK.format(end="pass"))
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_nothing_is_made_that_everybody_may_write_to():
    """Protects a run's folder under a umask of 000: anybody could put a link or another configuration into it. Mutant:
    the umask as it is."""
    code = "import os; os.umask(0); from benchmarks.common.system.programs import run_main_and_exit; "
    code += "run_main_and_exit(lambda: print(f'{os.umask(0):03o}'))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "002\n", done.stderr
    shell = subprocess.run(["bash", "-c", "umask 000; umask o-w; umask"], capture_output=True, text=True)
    assert shell.stdout == "0002\n"


@pytest.mark.medium
def test_no_command_makes_what_everybody_may_write_to(tmp_path):
    """Protects the same in the real commands. In a .venv that everybody could write to, packages of others would run.
    Mutant: bench without a umask."""
    own = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, own], check=True)
    shutil.copy(ROOT / "bench", own)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_ARGS": "--no-index"}
    subprocess.run(["./bench", "setup"], cwd=own, env=env, umask=0, capture_output=True, timeout=300)  # finds no torch
    assert (own / ".venv/bin/python").exists()
    command = [ROOT / "bench", "run", "single", "--repeats", "1", "--results", tmp_path / "set", "--", *TINY]
    started = environment(PYTHON=sys.executable, SETUP="no")
    done = subprocess.run(command, env=started, umask=0, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = [*(own / ".venv").rglob("*"), *(tmp_path / "set").rglob("*")]
    assert [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o002] == []


@pytest.mark.medium
@pytest.mark.parametrize("command", [["make", "clean", "YES=yes"], ["launchers/all.sh"]], ids=["make", "all.sh"])
def test_nobody_may_write_to_what_python_compiles(tmp_path, tiny_data, command):
    """Protects whoever types a command under a umask of 000: another user replaced a file in __pycache__, and the next
    command ran it. Mutants: either without its umask."""
    own = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, own], check=True)
    for name in ("Makefile", "launchers/all.sh"):
        shutil.copy(ROOT / name, own / name)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHON": sys.executable, "SETUP": "no"}
    env |= {"PLAN": "yes", "DATA": str(tiny_data)}
    done = subprocess.run(command, cwd=own, env=env, umask=0, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    compiled = [*own.rglob("__pycache__"), *own.rglob("*.pyc")]
    assert compiled and [path for path in compiled if path.stat().st_mode & 0o002] == []


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
