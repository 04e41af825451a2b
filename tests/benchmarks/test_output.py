"""What a program prints: nobody need read it, and texts of somebody else's files do not steer the terminal.

.venv/bin/python -m pytest tests/benchmarks/test_output.py
"""

import contextlib
import os
import subprocess
import sys

import pytest
from support import ROOT

from benchmarks.common.files import _SafeStream

TITLE = "\x1b]0;owned\x07"  # a terminal takes it for its window's title


def program(body: str) -> list[str]:
    start = "import sys\nfrom scripts.shared.programs import run_main_and_exit\n"
    return [sys.executable, "-c", f"{start}def main():\n {body}\nrun_main_and_exit(main)"]


def test_no_program_prints_what_steers_a_terminal():
    """Promise 3 of SECURITY.md: a folder in a set may be named with escape codes."""
    body = f"print('charts/' + {TITLE!r}, 'b\\udcff'); print('a\\rb', {TITLE!r}, file=sys.stderr); return 1"
    done = subprocess.run(program(body), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "charts/?]0;owned? b\\udcff\n" and done.stderr == "a?b ?]0;owned?\n"
    assert done.returncode == 1


@pytest.mark.parametrize("command", ['"$@" | true; exit ${PIPESTATUS[0]}', '"$@" >&-', '"$@" > /dev/full'])
def test_output_that_nobody_can_read_is_no_error(command):
    """Protects `./bench ... | head -1`, and a program whose stdout is closed or on a full disk."""
    body = "import time; time.sleep(0.5); print('a' * 100_000); return 3"
    done = subprocess.run(["bash", "-c", command, "bash", *program(body)], cwd=ROOT, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (3, b"")


def test_help_on_a_terminal_has_no_colours_and_no_signs_of_them():
    """Protects whoever reads the help on a terminal from codes with ? in their place."""
    master, slave = os.openpty()
    command = [sys.executable, "-m", "scripts.data.pack", "--help"]
    with subprocess.Popen(command, cwd=ROOT, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}) as running:
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # a terminal whose programs have ended
            while more := os.read(master, 1 << 16):
                said += more
        os.close(master)
    assert running.returncode == 0 and b"--pack" in said and b"\x1b" not in said and b"?[" not in said


@pytest.mark.parametrize("text", ["\r 40%|####\r", "one\n\ttwo\n", "\r\r", ""])
def test_bars_and_tables_are_printed_as_they_are(text, capsys):
    assert _SafeStream(sys.stdout).write(text) == len(text)
    assert capsys.readouterr().out == text
