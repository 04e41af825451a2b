"""What ./bench does before anything is installed: help, set-up, the change to the suite's interpreter. Standard library
only."""

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.common.errors import UserError
from scripts.cli.command_table import find_command, overview
from scripts.runner import variables
from scripts.setup import libraries
from scripts.setup.install import install, run
from scripts.shared.command_line import split_at_dashes
from scripts.shared.forward_signals import ENDING_SIGNALS, end_on_signals
from scripts.shared.repository import ROOT

STARTED = "BENCH_STARTED_FROM"
"""Where the user typed the command; set for the second start, by the suite's interpreter."""
HELP = ("--help", "-h")
NEEDED = "torch torchvision numpy pandas scipy matplotlib PIL tyro yaml tqdm psutil pynvml jinja2".split()


def start(words: list[str]) -> NoReturn:
    end_on_signals()
    from_folder = os.environ.pop(STARTED, "")
    variables.prepare(os.environ)
    if os.environ.get("DEVICE") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for what reads no DEVICE, such as other training loops
    command, rest = find_command(words)
    if command is None:
        if not words or {*words} & {*HELP}:
            print(overview())
            sys.exit(0 if words else 2)
        print(f"error: no command {shlex.join(words[:2])!r}; ./bench --help lists all", file=sys.stderr)
        sys.exit(2)
    wants_help = any(word in HELP for word in split_at_dashes(rest)[0])
    if from_folder:
        run_here(words, Path(from_folder))
    python = interpreter()
    if wants_help:
        if not shutil.which(python):
            print(f"{command.summary}\nexample: ./bench {command.example}")
            print("Its options are listed once everything is installed: ./bench setup")
            sys.exit(0)
    elif os.environ.get("SETUP") != "no":
        prepare(with_libraries=words[0] == "setup")
    if not shutil.which(python):
        print(f"error: no interpreter at {python}; set PYTHON, or run ./bench setup without SETUP=no", file=sys.stderr)
        sys.exit(2)
    os.environ.update({STARTED: os.getcwd(), "PYTHON": python})
    os.chdir(ROOT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until bench, started again, has handlers
    os.execvp(python, [python, str(ROOT / "bench"), *words])


def run_here(words: list[str], from_folder: Path) -> NoReturn:
    if missing := [name for name in NEEDED if not importlib.util.find_spec(name)]:
        print(f"error: {sys.executable} lacks {', '.join(missing)}; requirements.txt lists all", file=sys.stderr)
        sys.exit(2)  # not 1, which says "slower" of ab
    from scripts.cli.run_command import main

    sys.exit(main(words, from_folder))


def interpreter() -> str:
    """PYTHON, else that of .venv; not resolved, or a .venv would be lost."""
    chosen = os.environ.get("PYTHON", "")
    if not chosen:
        return str(ROOT / ".venv/bin/python")
    return os.path.abspath(chosen) if os.sep in chosen else chosen


def prepare(with_libraries: bool) -> None:
    """Exits with 2 where .venv cannot be made. with_libraries: TORCH chooses anew, Horovod and Apex are built."""
    try:
        install(again=with_libraries)
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for library in libraries.LIBRARIES if with_libraries else ():
        libraries.build_missing(library, str(libraries.VENV / "bin/python"), run)
