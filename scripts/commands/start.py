"""What ./bench does before anything is installed: help, set-up, and the change to the suite's interpreter. Standard
library only, and quick."""

import functools
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.common.files import hold_lock
from scripts.commands.command_table import GROUPS, find_command, nearest_commands, overview
from scripts.setup import libraries
from scripts.setup.first_minute import begin_set_up
from scripts.shared.forward_signals import ENDING_SIGNALS, end_on_signals, forward_signals
from scripts.shared.options_as_typed import split_at_dashes
from scripts.shared.repository import ROOT

STARTED = "BENCH_STARTED_FROM"
"""Set for the second start, by the suite's interpreter: where the user typed the command."""
SOURCES = ("requirements.txt", "requirements.lock", "requirements-torch2.10.lock")
SUITES = (["make", "bench-all"], ["run"])
"""Commands that build libraries when a run needs them."""
WITHOUT_RUNS = "data compare power decide export plot publish flags forecast-memory".split()
"""First words of commands that need no library that has to be built."""
HELP = ("--help", "-h")


def start(words: list[str]) -> NoReturn:
    """Run the command line by the suite's interpreter; ends with its exit code. bench has blocked the ending
    signals; from here on they end the process in one line."""
    end_on_signals()
    from_folder = os.environ.pop(STARTED, "")
    os.environ.pop("RUN_DIR", None)  # other programs have it, too, and what this process trains would write there
    if os.environ.get("DEVICE") == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # for what reads no DEVICE, such as other training loops
    if not words or words[0] in HELP:
        print(overview())
        sys.exit(0 if words else 2)
    if words[0] in GROUPS and (len(words) == 1 or words[1] in HELP):
        print(overview(words[0]))
        sys.exit(0 if len(words) > 1 else 2)
    command, rest = find_command(words)
    if command is None and words[0] != "make" and not words[0].startswith("--tyro-"):
        print(f"error: {nearest_commands(words)}", file=sys.stderr)
        sys.exit(2)
    wants_help = any(word in HELP for word in split_at_dashes(rest)[0])
    if from_folder:
        run_here(words, Path(from_folder))
    python = interpreter()
    if wants_help or words[0].startswith("--tyro-"):
        if command is not None and not can_start(python):
            print(f"{command.summary}\nexample: ./bench {command.example}")
            print("Its options are listed once everything is installed: ./bench setup")
            sys.exit(0)
    else:
        may_defer = words[:2] in SUITES or words[:1] in SUITES or words[0] in WITHOUT_RUNS
        prepare(again=words[0] == "setup" or words == ["make", "setup"], may_defer=may_defer)
    if not can_start(python):
        print(f"error: no interpreter at {python}; set PYTHON, or run ./bench setup without SETUP=no", file=sys.stderr)
        sys.exit(2)
    os.environ.update({STARTED: os.getcwd(), "PYTHON": python})
    os.chdir(ROOT)
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)  # until bench, started again, has handlers
    os.execvp(python, [python, str(ROOT / "bench"), *words])


def run_here(words: list[str], from_folder: Path) -> NoReturn:
    """Run the command in this interpreter, which has the packages."""
    try:
        from scripts.commands.run_command import main
    except ImportError as error:
        print(f"error: {sys.executable}: {error}; requirements.txt lists all that is needed", file=sys.stderr)
        sys.exit(2)  # not 1, which says "slower" of ab
    sys.exit(main(words, from_folder))


def interpreter() -> str:
    """PYTHON, else that of .venv; not resolved, or a .venv would be lost."""
    chosen = os.environ.get("PYTHON", "")
    if not chosen:
        return str(ROOT / ".venv/bin/python")
    return os.path.abspath(chosen) if os.sep in chosen else chosen


def can_start(python: str) -> bool:
    """Whether there is such a program."""
    return any(
        os.access(os.path.join(folder, python), os.X_OK)
        for folder in ([""] if os.sep in python else os.environ.get("PATH", "").split(os.pathsep))
    )


def prepare(*, again: bool, may_defer: bool = False) -> None:
    """Make .venv, unless SETUP=no or it is there and as new as the lists of packages. again: TORCH, LOCK and
    TORCH_INDEX choose anew. may_defer: leave libraries that have to be compiled for later."""
    if os.environ.get("SETUP") == "no":
        return
    venv = ROOT / ".venv"
    chosen = again and any(os.environ.get(name) for name in ("TORCH", "LOCK", "TORCH_INDEX"))
    if not chosen and is_current(venv, may_defer):
        return
    venv.mkdir(exist_ok=True)
    with hold_lock(venv / ".setup", limit_s=3600), forward_signals() as child_runner:
        run = functools.partial(child_runner.run, start_new_session=True)
        if chosen or not is_newer(venv / ".ready", SOURCES):
            print("setting up .venv (a minute or two, some GB)", file=sys.stderr, flush=True)
            begin_set_up(ROOT)
            code = run([sys.executable, "-m", "scripts.setup.install", ".venv"], cwd=ROOT)
            end_after(child_runner.signum)
            if code:
                sys.exit(code if code > 0 else 128 - code)
            (venv / ".ready").touch()
        if not is_current(venv, may_defer):
            libraries.build_libraries(venv, may_defer=may_defer, run=run)
            end_after(child_runner.signum)


def end_after(signum: int) -> None:
    """End this process where a signal has ended the installer."""
    if signum:
        print(f"stopped by {signal.Signals(signum).name}", file=sys.stderr)
        sys.exit(128 + signum)


def is_current(venv: Path, may_defer: bool) -> bool:
    """Whether nothing is left to install; with may_defer, nothing but deferred libraries."""
    if not is_newer(venv / ".ready", SOURCES):
        return False
    built = is_newer(venv / libraries.MARK, (".venv/.ready", *libraries.SCRIPTS.values()))
    return built and (may_defer or not libraries.deferred_libraries(venv))


def is_newer(mark: Path, sources: tuple[str, ...]) -> bool:
    if not mark.exists():
        return False
    return all((ROOT / source).stat().st_mtime_ns <= mark.stat().st_mtime_ns for source in sources)
