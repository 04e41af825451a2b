"""Checkouts of commits, each a git worktree that is removed at the end.

with checked_out([commit]) as folders: ...
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.shared import source_version
from scripts.shared.repository import CHECKOUTS_PREFIX, ROOT


@contextlib.contextmanager
def checked_out(commits: Iterable[str]) -> Iterator[dict[str, Path]]:
    """The folder of a worktree of each commit, by its hash. Signals must not end this process before the end: see
    forward_signals.py."""
    commits = [*dict.fromkeys(commits)]
    if not commits:
        yield {}
        return
    (ROOT / "results").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=CHECKOUTS_PREFIX, dir=ROOT / "results"))
    try:
        for commit in commits:
            if not git_succeeds("worktree", "add", "--detach", "--force", str(folder / commit[:12]), commit):
                raise UserError(f"git cannot check out commit {commit[:12]} in {folder}; see: git worktree list")
        yield {commit: folder / commit[:12] for commit in commits}
    finally:
        for commit in commits:
            git_text("worktree", "remove", "--force", str(folder / commit[:12]))
        shutil.rmtree(folder, ignore_errors=True)


def git_text(*arguments: str) -> str:
    """'' where git fails."""
    output = source_version.git(*arguments)
    return "" if output is None else output.decode(errors="surrogateescape")


def git_succeeds(*arguments: str) -> bool:
    return source_version.git(*arguments) is not None
