"""Checkouts of commits, each a git worktree that is removed at the end; and whether this checkout can start them.

    with checked_out([commit]) as folders: ...

launchers/README.md lists the variables by which a launcher of any checkout is started; plan.create_run_folder makes
them.
"""

import ast
import contextlib
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import psutil
import yaml

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.run_folder import RunFolder
from scripts.shared import source_version
from scripts.shared.repository import CHECKOUTS_NAME, ROOT, own_checkouts_prefix, process_space

VARIANT_KINDS = ("tree", "flags", "config", "python")  # of ./bench ab, with a colon


def find_commit(rev: str) -> str:
    """The whole hash of a commit of this repository; '' where it has none of that name, or git is missing."""
    return git_text("rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}").strip()


def why_not_startable(commit: str, strategy: str) -> str:
    """Why this checkout cannot start the commit's launcher of a strategy; '' where it can."""
    files = (
        f"{commit}:launchers/{strategy}.sh",
        f"{commit}:benchmarks/{strategy}.py",
    )  # launchers/all.sh has no benchmarks/all.py
    if not all(git_succeeds("cat-file", "-e", name) for name in files):
        return f"commit {commit[:12]} has no strategy {strategy}"
    if "--run" not in git_text("show", f"{commit}:launchers/lib.sh"):
        return f"the launchers of commit {commit[:12]} take no --run, by which this checkout starts them"
    return ""


def fields_of(commit: str) -> dict[str, str]:
    """The fields of the configuration that a commit knows, and the type of each as its code spells it."""
    tree = ast.parse(git_text("show", f"{commit}:benchmarks/common/config.py"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Config"]
    fields = [line for config in classes for line in config.body if isinstance(line, ast.AnnAssign)]
    return {field.target.id: ast.unparse(field.annotation) for field in fields if isinstance(field.target, ast.Name)}


def write_plan(folder: RunFolder, fields: Collection[str]) -> None:
    """Leave in run.yaml the fields that a commit's code knows. Every one is set: that code's defaults may differ."""
    plan = yaml.safe_load(folder.plan.read_text())
    plan["config"] = {name: value for name, value in plan["config"].items() if name in fields}
    write_text_atomically(folder.plan, yaml.safe_dump(plan, sort_keys=False))


@contextlib.contextmanager
def checked_out(commits: Iterable[str]) -> Iterator[dict[str, Path]]:
    """The folder of a worktree of each commit, by its hash; without commits nothing is made.

    Signals must not end this process before the end: see forward_signals.py. Raises UserError where git fails.
    """
    commits = [*dict.fromkeys(commits)]
    if not commits:
        yield {}
        return
    (ROOT / "results").mkdir(exist_ok=True)
    _remove_left_over()
    folder = Path(tempfile.mkdtemp(prefix=own_checkouts_prefix(), dir=ROOT / "results"))
    try:
        for commit in commits:
            if not git_succeeds("worktree", "add", "--detach", "--force", str(folder / commit[:12]), commit):
                raise UserError(f"git cannot check out commit {commit[:12]} in {folder}; see: git worktree list")
        yield {commit: folder / commit[:12] for commit in commits}
    finally:
        for commit in commits:
            git_text("worktree", "remove", "--force", str(folder / commit[:12]))
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left_over() -> None:
    """Worktrees of a process of this host or container that was killed."""
    for line in git_text("worktree", "list", "--porcelain").splitlines():
        path = Path(line.removeprefix("worktree "))
        found = CHECKOUTS_NAME.fullmatch(path.parent.name) if line.startswith("worktree ") else None
        if found and found["space"] == process_space() and not psutil.pid_exists(int(found["pid"])):
            git_text("worktree", "remove", "--force", str(path))
            shutil.rmtree(path.parent, ignore_errors=True)


def git_text(*arguments: str) -> str:
    """What git prints in this checkout; '' where it fails."""
    output = source_version.git(*arguments)
    return "" if output is None else output.decode(errors="surrogateescape")


def git_succeeds(*arguments: str) -> bool:
    return source_version.git(*arguments) is not None
