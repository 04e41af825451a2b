"""Libraries that set-up left for later, since compiling them takes minutes: built before the first run that needs
one."""

import dataclasses
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.files import write_json
from benchmarks.common.run_folder import RunFolder
from scripts.runner.environment import installed_packages
from scripts.runner.run_plan import Run, interpreter_path
from scripts.setup.libraries import build_deferred, deferred_libraries, library_of
from scripts.shared.forward_signals import SignalForwarder
from scripts.shared.repository import ROOT

VENV = ROOT / ".venv"


def needs_build(strategy: str) -> bool:
    """Never where the interpreter is the user's own."""
    if os.environ.get("SETUP") == "no" or interpreter_path() != str(VENV / "bin/python"):
        return False
    return library_of(strategy) in deferred_libraries(VENV)


def put_last(runs: Sequence[Run]) -> list[Run]:
    """The runs, with those that wait for a build at the end of the first round."""
    first = [run for run in runs if run.round == runs[0].round]
    if not any(needs_build(run.strategy) for run in first):
        return [*runs]
    ordered = sorted(first, key=lambda run: needs_build(run.strategy))
    positions = sorted(run.position for run in first)
    moved = [dataclasses.replace(run, position=place) for run, place in zip(ordered, positions, strict=True)]
    return [*moved, *runs[len(first) :]]


def build_now(results: Path, child_runner: SignalForwarder) -> None:
    """Build what was left; environment.json gets the new versions."""
    build_deferred(VENV, functools.partial(child_runner.run, start_new_session=True))
    path = results / "environment.json"
    if not path.exists():
        return
    try:
        write_json(path, json.loads(path.read_bytes()) | {"packages": installed_packages()})
    except (ValueError, TypeError):
        print(f"warning: {path} is not as the suite writes it, and gets no new versions", file=sys.stderr)


@dataclasses.dataclass
class LateBuilds:
    """To be called before each run."""

    results: Path
    child_runner: SignalForwarder
    spent_s: float = 0.0
    """Seconds of all builds."""

    def __call__(self, run: Run, folder: RunFolder) -> None:
        if not needs_build(run.strategy) or run.variables.get("SKIP"):
            return
        began = time.monotonic()
        build_now(self.results, self.child_runner)
        self.spent_s += time.monotonic() - began
