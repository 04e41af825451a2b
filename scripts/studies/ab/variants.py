"""The two things that `make ab` compares, and a checkout of each that is a commit.

    commit:REV, or REV     a commit, in a git worktree of its own; its launchers and its code
    tree:                  this checkout as it is, local changes included
    flags:--x 1            this checkout with more flags
    config:FILE            this checkout with another CONFIG
    python:PATH            this checkout with another interpreter

All is checked before anything is started: of a commit git tells what is in it.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.config.config import FIELDS, Config, load_config
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.repository import ROOT
from scripts.runner import source_version, worktrees
from scripts.runner.make_variables import Given
from scripts.runner.run_plan import python

KINDS = ("commit", "tree", "flags", "config", "python")


@dataclasses.dataclass(frozen=True)
class Side:
    """One of two things. commit: its hash, '' for this checkout; fields: of the configuration that it knows."""

    name: str
    text: str
    config: Config
    flags: str
    python: str
    commit: str = ""
    fields: frozenset[str] = frozenset(FIELDS)

    @property
    def source(self) -> str:
        """What its code is: a commit, and local changes where there are any."""
        return (
            self.commit[: source_version.DIGITS]
            or f"{source_version.commit() or ''} {source_version.local_changes()}".strip()
        )

    @property
    def what(self) -> tuple:
        """Equal for two sides that are the same thing."""
        return self.source, self.python, dataclasses.replace(self.config, config="")


def read_side(name: str, text: str, given: Given, strategy: str) -> Side:
    """The side `name` (A or B) that `text` says. Raises UserError for what cannot be measured."""
    kind, colon, value = text.partition(":")
    if not text:
        example = 'make ab A=HEAD~1 B=tree:, or A="flags:" B="flags:--bucket-cap-mb 100"'
        raise UserError(f"{name} is not set; for example: {example}")
    if not colon or kind not in KINDS:
        kind, value = "commit", text
    flags, interpreter = list(given.flags), python()
    if kind == "tree" and value:
        raise UserError(f"{name}={text}: tree: is this checkout, and takes nothing; leave {value!r} out")
    if kind == "flags":
        flags += value.split()
    elif kind == "config":
        if not Path(value).is_file():
            raise UserError(f"{name}={text}: there is no file {value!r}")
        flags += ["--config", value]
    elif kind == "python":
        interpreter = _interpreter(name, text, value)
    typed = " ".join([given.args, value if kind == "flags" else ""]).strip()
    side = Side(name, text, _from_here(load_config(flags)), typed, interpreter)
    return _of_commit(side, value, strategy) if kind == "commit" else side


def _from_here(config: Config) -> Config:
    """With a path that holds in any checkout."""
    return dataclasses.replace(config, data=os.path.abspath(config.data))


def _interpreter(name: str, text: str, value: str) -> str:
    found = shutil.which(value)
    if found is None:
        raise UserError(f"{name}={text}: {value or 'nothing'} is no program; give the path of an interpreter")
    return os.path.abspath(found)  # not resolved, or a venv is lost


def _of_commit(side: Side, rev: str, strategy: str) -> Side:
    where = f"{side.name}={side.text}"
    commit = worktrees.find_commit(rev)
    if not commit:
        why = "is no commit of this repository" if source_version.commit() else "needs git, and this is no git checkout"
        raise UserError(f"{where} {why}; a commit, {', '.join(kind + ':' for kind in KINDS[1:])} are what there is")
    if why := worktrees.why_not_startable(commit, strategy):
        raise UserError(f"{where}: {why}; compare another, or later commits")
    known = worktrees.fields_of(commit)
    defaults = vars(Config())
    lacking = [key for key, value in vars(side.config).items() if key not in known and value != defaults[key]]
    if lacking:
        raise UserError(f"{where}: commit {commit[:12]} has no option {lacking[0]}, which is set; leave it out")
    return dataclasses.replace(side, commit=commit, fields=frozenset(known & FIELDS.keys()))


def write_config(side: Side, folder: RunFolder, config: Config) -> None:
    """The configuration of a run for the code of a side."""
    worktrees.write_config(folder, vars(config), side.fields)


@contextlib.contextmanager
def checkouts(sides: Sequence[Side]) -> Iterator[dict[str, Path]]:
    """Where each side's code is, by its name: this checkout, or a worktree that is removed at the end."""
    with worktrees.checked_out([side.commit for side in sides if side.commit]) as folders:
        yield {side.name: folders.get(side.commit, ROOT) for side in sides}
