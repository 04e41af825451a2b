"""Which source a run was started from: the commit, and what was changed since."""

import functools
import hashlib
import os
import subprocess
from pathlib import Path

from scripts.shared.repository import ROOT

NUM_HASH_DIGITS = 12
SOURCES = ("benchmarks", "configs", "launchers", "scripts")
NEW_SOURCE = ("*.py", "*.sh", "*.yaml")  # of files that git does not know, those that may change a run


def commit() -> str | None:
    """None outside a checkout, or without git."""
    said = git("rev-parse", f"--short={NUM_HASH_DIGITS}", "HEAD")
    return said.decode().strip() if said is not None else None


@functools.cache
def local_changes() -> str:
    """A hash of what differs from the commit, new source files included; '' for nothing. Without git, of all
    sources."""
    # not by the user's own diff program
    changed = git("diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD")
    if changed is None:
        found = (path for folder in SOURCES for path in (ROOT / folder).rglob("*.*"))
        names = sorted(os.fsencode(path.relative_to(ROOT)) for path in found if f"*{path.suffix}" in NEW_SOURCE)
    else:
        new = git("ls-files", "--others", "--exclude-standard", "-z", "--", *NEW_SOURCE) or b""
        names = [name for name in new.split(b"\0") if name]
    if not changed and not names:
        return ""
    digest = hashlib.sha256(changed or b"")
    for name in names:
        path = ROOT / os.fsdecode(name)
        digest.update(name + b"\0" + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()[:NUM_HASH_DIGITS]


def warning_without_commit() -> str:
    if commit() is not None:
        return ""
    said = git_problem()
    remedy = f"git config --global --add safe.directory {ROOT}" if "dubious ownership" in said else "a clone has one"
    why = said.removeprefix("fatal: ") or "this is no git repository, or there is no git"
    return f"rows have no commit, but a hash of the sources: {why}; {remedy}"


def is_shallow() -> bool:
    return git("rev-parse", "--is-shallow-repository") == b"true\n"


def git(*arguments: str) -> bytes | None:
    """None where git fails or is missing, and in another repository, into which a release may be unpacked."""
    top = _start("rev-parse", "--show-toplevel")
    if not top or Path(os.fsdecode(top.stdout.removesuffix(b"\n"))).resolve() != ROOT.resolve():
        return None
    done = _start(*arguments)
    return done.stdout if done and not done.returncode else None


def git_problem() -> str:
    """Such as "dubious ownership"; '' for none."""
    done = _start("rev-parse", "--show-toplevel")
    if done is None or not done.returncode or not (ROOT / ".git").exists():
        return ""
    return done.stderr.decode(errors="replace").partition("\n")[0]


def git_environment() -> dict[str, str]:
    """Without GIT_DIR and the like, which hooks of another repository set."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith("GIT_CONFIG") or not name.startswith("GIT_")
    }


def _start(*arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            ["git", "-C", ROOT, *arguments],
            env=git_environment(),
            capture_output=True,
            check=False,
            start_new_session=True,  # Ctrl-C must not leave half a worktree
        )
    except OSError:  # no git here
        return None
