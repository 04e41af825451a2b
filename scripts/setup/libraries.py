"""Horovod and Apex, which are built from source after everything else is installed. Standard library alone."""

import os
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.files import hold_lock
from scripts.shared.repository import ROOT

SCRIPTS = {name: f"scripts/setup/install_{name}.sh" for name in ("horovod", "apex")}
MARK = ".extras"
"""A file of the virtual environment: the libraries were built or tried, but for those in it."""
NEEDS_BUILD = 3
"""Exit code of a script with BUILD=no: it has to be compiled."""


def library_of(strategy: str) -> str:
    """The library that the strategy needs, the first word of its name; '' for none."""
    word = strategy.partition("_")[0]
    return word if word in SCRIPTS else ""


def build_libraries(venv: Path, *, may_defer: bool, run: Callable[..., int]) -> None:
    """Build each library, or take it from the cache, and mark that this was done. A build that fails is tried once.

    may_defer: leave what has to be compiled for later. run: starts a command with env and cwd; returns its exit code.
    """
    deferred = []
    for name, script in SCRIPTS.items():
        env = os.environ | {"PYTHON": str(venv / "bin/python"), "BUILD": "no" if may_defer else "yes"}
        code = run([ROOT / script], cwd=ROOT, env=env)
        if code == NEEDS_BUILD or code < 0 or code > 128:
            deferred.append(name)
    (venv / MARK).write_text(" ".join(deferred))


def deferred_libraries(venv: Path) -> list[str]:
    """The libraries that are still to be built in the environment."""
    try:
        return [name for name in (venv / MARK).read_text().split() if name in SCRIPTS]
    except OSError:
        return []


def build_deferred(venv: Path, run: Callable[..., int]) -> None:
    """Build now what was deferred. run: as for build_libraries."""
    with hold_lock(venv / ".setup", limit_s=3600):
        if deferred_libraries(venv):
            build_libraries(venv, may_defer=False, run=run)
