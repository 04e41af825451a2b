"""Which source a run was started from: the commit, and what was changed since."""

import functools
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIGITS = 12
READ_WHOLE = 10**7  # bytes; a larger new file, such as a data set that git was not told of, counts by size and time


def commit() -> str | None:
    """The commit that is checked out; None outside a checkout, or without git."""
    said = _git("rev-parse", f"--short={DIGITS}", "HEAD")
    return said.decode().strip() if said is not None else None


@functools.cache
def local_changes() -> str:
    """A short hash of what differs from the commit, files that git does not know included; '' where nothing does."""
    changed = _git("diff", "--binary", "HEAD")
    new = _git("ls-files", "--others", "--exclude-standard", "-z")
    if not changed and not new:
        return ""
    digest = hashlib.sha256(changed or b"")
    for name in (new or b"").split(b"\0"):
        path = ROOT / name.decode(errors="surrogateescape")
        if path.is_file():
            size, moment = path.stat().st_size, path.stat().st_mtime_ns
            digest.update(name + b"\0" + (path.read_bytes() if size <= READ_WHOLE else b"%d %d" % (size, moment)))
    return digest.hexdigest()[:DIGITS]


def _git(*words: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, check=False)
    except OSError:  # no git here
        return None
    return done.stdout if done.returncode == 0 else None
