"""The two variants that `./bench ab` compares, and a checkout of each that is a commit.

    commit:REV, or REV     a commit, in a git worktree of its own; its launchers and its code
    tree:                  this checkout as it is, local changes included
    flags:--x 1            this checkout with more flags
    config:FILE            this checkout with another configuration
    python:PATH            this checkout with another interpreter

Everything is checked before anything is started; git says what a commit holds.
"""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.config import FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from scripts.runner.plan import interpreter_path
from scripts.runner.request import Request
from scripts.shared import source_version
from scripts.shared.repository import ROOT
from scripts.studies.ab import worktrees

KINDS = ("commit", *worktrees.VARIANT_KINDS)


@dataclasses.dataclass(frozen=True)
class Variant:
    """What is compared. commit: its hash, '' for this checkout; fields: those of Config that its code knows."""

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
            self.commit[: source_version.NUM_HASH_DIGITS]
            or f"{source_version.commit() or ''} {source_version.local_changes()}".strip()
        )

    @property
    def content(self) -> tuple[str, str, Config]:
        """Equal for two variants that run the same."""
        return self.source, self.python, dataclasses.replace(self.config, config="")


def parse_variant(name: str, text: str, request: Request, strategy: str) -> Variant:
    """The variant `name` (A or B) that `text` describes. Raises UserError for what cannot be measured."""
    kind, colon, value = text.partition(":")
    if not text:
        example = './bench ab HEAD~1 tree:, or ./bench ab flags: "flags:--bucket-cap-mb 100"'
        raise UserError(f"{name} is missing; for example: {example}")
    if not colon or kind not in KINDS:
        kind, value = "commit", text
    flags, interpreter = list(request.flags), interpreter_path()
    if kind == "tree" and value:
        raise UserError(f"{name}={text}: tree: is this checkout, and has no value; leave {value!r} out")
    if kind == "flags":
        flags += value.split()
    elif kind == "config":
        if not Path(value).is_file():
            raise UserError(f"{name}={text}: there is no file {value!r}")
        flags += ["--config", value]
    elif kind == "python":
        interpreter = _interpreter(name, text, value)
    typed = " ".join([request.own_text, value if kind == "flags" else ""]).strip()
    variant = Variant(name, text, _with_absolute_data(load_config(flags)), typed, interpreter)
    return _variant_of_commit(variant, value, strategy) if kind == "commit" else variant


def _with_absolute_data(config: Config) -> Config:
    """With a path that holds in any checkout."""
    return dataclasses.replace(config, data=os.path.abspath(config.data))


def _interpreter(name: str, text: str, value: str) -> str:
    found = shutil.which(value)
    if found is None:
        raise UserError(f"{name}={text}: {value or 'nothing'} is no program; give the path of an interpreter")
    return os.path.abspath(found)  # not resolved, or a venv is lost


def _variant_of_commit(variant: Variant, rev: str, strategy: str) -> Variant:
    where = f"{variant.name}={variant.text}"
    commit = worktrees.find_commit(rev)
    if not commit:
        raise UserError(
            f"{where} {_why_no_commit()}; a commit, {', '.join(kind + ':' for kind in KINDS[1:])} are what there is"
        )
    if why := worktrees.why_not_startable(commit, strategy):
        raise UserError(f"{where}: {why}; compare another, or later commits")
    known = worktrees.fields_of(commit)
    defaults = vars(Config())
    # Where a commit's field does not take a word such as `auto`, its own default is what that was then.
    usable = {key for key, value in vars(variant.config).items() if key in known and _takes(known[key], value)}
    lacking = [key for key, value in vars(variant.config).items() if key not in usable and value != defaults[key]]
    if lacking:
        what = f"{lacking[0]} {getattr(variant.config, lacking[0])}" if lacking[0] in known else lacking[0]
        raise UserError(f"{where}: commit {commit[:12]} has no option {what}, which is set; leave it out")
    return dataclasses.replace(variant, commit=commit, fields=frozenset(usable))


def _takes(kind: str, value: object) -> bool:
    """Whether a field of this type, as fields_of spells it, takes the value."""
    if not isinstance(value, str):
        return True
    return repr(value) in kind if "Literal" in kind else not kind.startswith(("int", "float", "Annotated"))


def _why_no_commit() -> str:
    """Why git finds no commit of a name in this checkout."""
    if not source_version.commit():
        said = source_version.git_problem()
        return f"needs git, and this is no checkout of git{f' ({said})' if said else ''}"
    if source_version.is_shallow():
        return "is no commit of this clone, which is shallow: git fetch --unshallow (fetch-depth: 0 in a workflow)"
    return "is no commit of this repository"


@contextlib.contextmanager
def checkouts(variants: Sequence[Variant]) -> Iterator[dict[str, Path]]:
    """Where each variant's code is, by its name: this checkout, or a worktree that is removed at the end."""
    with worktrees.checked_out([variant.commit for variant in variants if variant.commit]) as folders:
        yield {variant.name: folders.get(variant.commit, ROOT) for variant in variants}
