"""How a rank ends, and what a program prints."""

import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.files import replace_atomically
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
def test_a_rank_ends_at_once_with_its_output_written_and_names_the_cause(tmp_path, end, code):
    """And does not hang where the interpreter shuts down."""
    (tmp_path / "run.yaml").write_text("")
    env = environment(RUN_DIR=tmp_path, RANK=1, SLURM_PROCID=0)
    command = [sys.executable, "-c", RANK.format(end=end)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (code, "trained\n"), done.stderr
    causes = [(cause["status"], cause["rank"]) for cause in RunFolder(tmp_path).causes()]
    assert causes == ([("failed", 1)] if code else [])


def program(body: str) -> list[str]:
    start = "import sys\nfrom scripts.shared.programs import run_main_and_exit\n"
    return [sys.executable, "-c", f"{start}def main():\n {body}\nrun_main_and_exit(main)"]


def test_no_program_prints_what_steers_a_terminal():
    """Promise 3 of SECURITY.md."""
    title = "\x1b]0;owned\x07"  # a terminal takes it for its window's title
    body = f"print('charts/' + {title!r}, 'b\\udcff'); print('a\\rb', {title!r}, file=sys.stderr); return 1"
    done = subprocess.run(program(body), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "charts/?]0;owned? b\\udcff\n" and done.stderr == "a?b ?]0;owned?\n"
    assert done.returncode == 1


@pytest.mark.parametrize("command", ['"$@" | true; exit ${PIPESTATUS[0]}', '"$@" > /dev/full'])
def test_output_that_nobody_can_read_is_no_error(command):
    """Protects `./bench ... | head -1`, and a full disk."""
    body = "import time; time.sleep(0.5); print('a' * 100_000); return 3"
    done = subprocess.run(["bash", "-c", command, "bash", *program(body)], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, b"")


# --- files.py -----------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        replace_atomically(path, lambda file: file.write(b"half") / 0)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"
