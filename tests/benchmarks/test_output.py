"""What a program prints: texts of somebody else's files do not steer the terminal.

.venv/bin/python -m pytest tests/benchmarks/test_output.py
"""

import contextlib
import os
import subprocess
import sys

import pytest
from support import ROOT

from benchmarks.common.system.output import without_steering

TITLE = "\x1b]0;owned\x07"  # a terminal takes it for its window's title


def test_no_program_prints_what_steers_a_terminal():
    """Protects whoever runs a command on somebody else's files: a folder in a set may be named with escape codes.
    Mutants: sys.stderr left as it was; the text as it stands."""
    code = f"""
import sys
from benchmarks.common.system.programs import run_main_and_exit
def main():
    print("charts/" + {TITLE!r}, "b\\udcff")
    print("warning: a\\rb\\u202e", {TITLE!r}, file=sys.stderr)
    return 1
run_main_and_exit(main)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert done.stdout.decode() == "charts/?]0;owned? b?\n"
    assert done.stderr.decode() == "warning: a?b? ?]0;owned?\n"
    assert done.returncode == 1


def test_help_on_a_terminal_has_no_colours_and_no_signs_of_them():
    """Protects whoever reads the help on a terminal from codes with ? in their place. Mutant: stdout says it is one."""
    master, slave = os.openpty()
    command = [sys.executable, "-m", "scripts.setup.pack", "--help"]
    with subprocess.Popen(command, cwd=ROOT, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"}) as program:
        os.close(slave)
        said = b""
        with contextlib.suppress(OSError):  # a terminal whose programs have ended
            while more := os.read(master, 1 << 16):
                said += more
        os.close(master)
    assert program.returncode == 0 and b"--pack" in said and b"\x1b" not in said and b"?[" not in said


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("\r 40%|####\r", "\r 40%|####\r"),
        ("one\n\ttwo\n", "one\n\ttwo\n"),
        ("\x1b[1;31merror\x1b[0m", "?[1;31merror?[0m"),
        ("a b­", "a b­"),
        ("\x1b[8mhidden", "?[8mhidden"),
        ("\x1b[2J\x9b2J\x08", "?[2J?2J?"),
        ("\r\r", "\r\r"),
        ("", ""),
    ],
)
def test_bars_and_tables_are_printed_as_they_are_and_escapes_are_not(text, printed):
    """Protects bars of progress. Black letters hide what follows a name. Mutants: carriage returns left out; all
    escapes allowed, or those of colours."""
    assert without_steering(text) == printed and len(printed) == len(text)
