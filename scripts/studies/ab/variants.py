"""The two variants that `./bench ab` compares, each checked before anything is started.

commit:REV, or REV     a commit, in a git worktree of its own; its launchers and its code
tree:                  this checkout as it is, local changes included
flags:--x 1            this checkout with more flags
config:FILE            this checkout with another configuration
python:PATH            this checkout with another interpreter
"""

import ast
import dataclasses
import os
import shlex
import shutil
from pathlib import Path

from benchmarks.common.config import FIELDS, Config, load_config
from benchmarks.common.errors import UserError
from scripts.runner.plan import interpreter_path
from scripts.runner.request import Request
from scripts.shared import source_version
from scripts.studies.ab.worktrees import git_succeeds, git_text

KINDS = ("commit", "tree", "flags", "config", "python")


@dataclasses.dataclass(frozen=True)
class Variant:
    """commit: its hash, '' for this checkout. fields: those of Config that its code knows."""

    name: str
    text: str
    config: Config
    flags: str
    python: str
    commit: str = ""
    fields: frozenset[str] = frozenset(FIELDS)

    @property
    def source(self) -> str:
        """A commit, and local changes where there are any."""
        if self.commit:
            return self.commit[: source_version.NUM_HASH_DIGITS]
        return f"{source_version.commit() or ''} {source_version.local_changes()}".strip()

    @property
    def content(self) -> tuple[str, str, Config]:
        """Equal for two variants that run the same."""
        return self.source, self.python, dataclasses.replace(self.config, config="")


def parse_variant(name: str, text: str, request: Request, strategy: str) -> Variant:
    """name: A or B. Raises UserError for what cannot be measured."""
    where, (kind, colon, value) = f"{name}={text}", text.partition(":")
    if not text:
        example = './bench ab HEAD~1 tree:, or ./bench ab flags: "flags:--bucket-cap-mb 100"'
        raise UserError(f"{name} is missing; for example: {example}")
    if not colon or kind not in KINDS:
        kind, value = "commit", text
    flags, python = list(request.flags), interpreter_path()
    if kind == "flags":
        try:
            flags += shlex.split(value)
        except ValueError as error:
            raise UserError(f"{where}: {error}") from None
    elif kind == "config":
        if not Path(value).is_file():
            raise UserError(f"{where}: there is no file {value!r}")
        flags += ["--config", value]
    elif kind == "python":
        found = shutil.which(value)
        if found is None:
            raise UserError(f"{where}: {value or 'nothing'} is no program; give the path of an interpreter")
        python = os.path.abspath(found)  # not resolved, or a venv is lost
    typed = " ".join([request.own_text, value if kind == "flags" else ""]).strip()
    config = load_config(flags)
    config = dataclasses.replace(config, data=os.path.abspath(config.data))  # which holds in any checkout
    variant = Variant(name, text, config, typed, python)
    return _of_commit(variant, value, strategy) if kind == "commit" else variant


def _of_commit(variant: Variant, rev: str, strategy: str) -> Variant:
    where = f"{variant.name}={variant.text}"
    commit = git_text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}").strip()
    if not commit:
        there_are = ", ".join(f"{kind}:" for kind in KINDS[1:])
        raise UserError(f"{where} {_why_no_commit()}; a commit, {there_are} are what there is")
    files = (f"launchers/{strategy}.sh", f"benchmarks/{strategy}.py")
    if not all(git_succeeds("cat-file", "-e", f"{commit}:{name}") for name in files):
        raise UserError(f"{where}: commit {commit[:12]} has no strategy {strategy}; compare later commits")
    known, defaults = _fields_of(commit), vars(Config())
    lacking = [key for key, value in vars(variant.config).items() if key not in known and value != defaults[key]]
    if lacking:
        raise UserError(f"{where}: commit {commit[:12]} has no option {lacking[0]}, which is set; leave it out")
    return dataclasses.replace(variant, commit=commit, fields=known)


def _fields_of(commit: str) -> frozenset[str]:
    """The fields of its configuration."""
    tree = ast.parse(git_text("show", f"{commit}:benchmarks/common/config.py"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Config"]
    fields = [line for config in classes for line in config.body if isinstance(line, ast.AnnAssign)]
    return frozenset(field.target.id for field in fields if isinstance(field.target, ast.Name))


def _why_no_commit() -> str:
    if not source_version.commit():
        said = source_version.git_problem()
        return f"needs git, and this is no checkout of git{f' ({said})' if said else ''}"
    if source_version.is_shallow():
        return "is no commit of this clone, which is shallow: git fetch --unshallow (fetch-depth: 0 in a workflow)"
    return "is no commit of this repository"
