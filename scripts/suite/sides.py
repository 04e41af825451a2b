"""The two things that `make ab` compares, and a checkout of each that is a commit.

    commit:REV, or REV     a commit, in a git worktree of its own; its launchers and its code
    tree:                  this checkout as it is, local changes included
    flags:--x 1            this checkout with more flags
    config:FILE            this checkout with another CONFIG
    python:PATH            this checkout with another interpreter

All is checked before anything is started: of a commit git tells what is in it.
"""

import ast
import contextlib
import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import yaml

from benchmarks.common.config import FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.results import write_whole
from benchmarks.common.run_folder import RunFolder
from scripts.suite import source
from scripts.suite.plan import python
from scripts.suite.variables import Given

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("commit", "tree", "flags", "config", "python")
PREFIX = "imagenet-ab-"  # of the folder that holds the worktrees; then the process that made it


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
        return self.commit[: source.DIGITS] or f"{source.commit() or ''} {source.local_changes()}".strip()

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
    commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", rev + "^{commit}")
    if not commit:
        why = "is no commit of this repository" if source.commit() else "needs git, and this is no git checkout"
        raise UserError(f"{where} {why}; a commit, {', '.join(kind + ':' for kind in KINDS[1:])} are what there is")
    commit = commit.strip()
    if not git("cat-file", "-e", f"{commit}:launchers/{strategy}.sh", quiet=True):
        raise UserError(f"{where}: commit {commit[:12]} has no strategy {strategy}; compare another, or later commits")
    if "def begin(" not in git("show", f"{commit}:scripts/suite/plan.py"):
        raise UserError(
            f"{where}: the launchers of commit {commit[:12]} are older than the variables by which this checkout "
            "starts them (launchers/README.md); compare later commits"
        )
    known = _fields_of(git("show", f"{commit}:benchmarks/common/config.py"))
    defaults = vars(Config())
    lacking = [key for key, value in vars(side.config).items() if key not in known and value != defaults[key]]
    if lacking:
        raise UserError(f"{where}: commit {commit[:12]} has no option {lacking[0]}, which is set; leave it out")
    return dataclasses.replace(side, commit=commit, fields=frozenset(known & FIELDS.keys()))


def _fields_of(text: str) -> set[str]:
    """Names in `class Config` of a source."""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef) and node.name == "Config"]
    return {line.target.id for each in classes for line in each.body if isinstance(line, ast.AnnAssign)}


def write_config(side: Side, folder: RunFolder, config: Config) -> None:
    """The configuration of a run for the code of a side, with every field that it knows: its defaults may be others."""
    known = {name: value for name, value in vars(config).items() if name in side.fields and name != "config"}
    write_whole(folder.config, yaml.safe_dump(known, sort_keys=False))


@contextlib.contextmanager
def checkouts(sides: Sequence[Side]) -> Iterator[dict[str, Path]]:
    """Where each side's code is, by its name: this checkout, or a worktree that is removed at the end.

    Signals must not end this process before that: see benchmarks.common.relay. Raises UserError where git fails.
    """
    commits = dict.fromkeys(side.commit for side in sides if side.commit)
    if commits:
        _remove_left_over()
    folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")) if commits else None
    try:
        for commit in commits:
            if not git("worktree", "add", "--detach", "--force", str(folder / commit[:12]), commit, quiet=True):
                raise UserError(f"git cannot check out commit {commit[:12]} in {folder}; see: git worktree list")
        yield {side.name: folder / side.commit[:12] if side.commit else ROOT for side in sides}
    finally:
        for commit in commits:
            git("worktree", "remove", "--force", str(folder / commit[:12]))
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over() -> None:
    """Worktrees of a process that was killed."""
    for line in git("worktree", "list", "--porcelain").splitlines():
        path = Path(line.removeprefix("worktree "))
        owner = path.parent.name.removeprefix(PREFIX).partition("-")[0]
        ours = line.startswith("worktree ") and path.parent.name.startswith(PREFIX) and owner.isdecimal()
        if ours and not psutil.pid_exists(int(owner)):
            git("worktree", "remove", "--force", str(path))
            shutil.rmtree(path.parent, ignore_errors=True)


def git(*words: str, quiet: bool = False) -> str:
    """What git says in this checkout; '' where it fails. quiet: 'yes' where it does not.

    In a session of its own: Ctrl-C must not leave half a worktree.
    """
    command = ["git", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    except OSError:
        return ""
    return "" if done.returncode else "yes" if quiet else done.stdout
