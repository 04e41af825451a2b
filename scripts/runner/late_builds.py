"""Libraries that set-up left for later, since compiling them takes minutes: built right before the run that needs them.

runs = late_builds.put_last(runs)               # the strategies that need such a library come last in their round
late_builds.build_now(results, children)        # nothing is timed meanwhile
"""

import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.store.results import write_json
from benchmarks.common.system.files import read_regular_file
from benchmarks.common.system.forward_signals import SignalForwarder
from benchmarks.common.system.repository import ROOT
from scripts.runner.environment import installed_packages
from scripts.runner.run_plan import Run, interpreter_path
from scripts.setup.libraries import build_deferred, deferred_libraries

VENV = ROOT / ".venv"
ENVIRONMENT_BYTES = 10_000_000


def needs_build(strategy: str) -> bool:
    """Whether set-up has left the strategy's library for later; never where the interpreter is the user's own."""
    if os.environ.get("SETUP") == "no" or interpreter_path() != str(VENV / "bin/python"):
        return False
    return strategy.split("_")[0] in deferred_libraries(VENV)  # as horovod_ddp


def put_last(runs: Sequence[Run]) -> list[Run]:
    """The runs, with those that wait for a build at the end of the first round among them."""
    first = [run for run in runs if run.round == runs[0].round]
    if not any(needs_build(run.strategy) for run in first):
        return [*runs]
    ordered = sorted(first, key=lambda run: needs_build(run.strategy))
    positions = sorted(run.position for run in first)
    moved = [dataclasses.replace(run, position=place) for run, place in zip(ordered, positions, strict=True)]
    return [*moved, *runs[len(first) :]]


def build_now(results: Path, children: SignalForwarder) -> None:
    """Build what was left for later. The set's environment.json gets the versions of what is installed then."""
    build_deferred(VENV, functools.partial(children.run, start_new_session=True))
    path = results / "environment.json"
    with contextlib.suppress(OSError, ValueError):  # it is not there, or not the suite's
        written = json.loads(read_regular_file(path, ENVIRONMENT_BYTES))
        write_json(path, {**written, "packages": installed_packages()})
