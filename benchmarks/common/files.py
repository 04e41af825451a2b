"""Files that are whole or not there, and on the disk when the call returns; and locks between processes.

Needs no torch.
"""

import contextlib
import errno
import fcntl
import os
import pwd
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

LOCK_LIMIT_S = 60.0
FIRST_POLL_S, POLL_S = 0.001, 0.05  # most locks are held for a millisecond


def home_folder() -> Path | None:
    """The user's home folder; None where neither HOME nor the system's list of users names one."""
    try:
        return Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


@contextlib.contextmanager
def hold_lock(path: Path, limit_s: float = LOCK_LIMIT_S) -> Iterator[int]:
    """Hold the lock file `path` alone; yields its file descriptor. The file is made where it is missing, and its
    content is left alone. limit_s: 0 does not wait.

    Raises TimeoutError where another process holds the lock for longer than `limit_s`, and OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline, pause_s = time.monotonic() + limit_s, FIRST_POLL_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    why = f"another process has held the lock for more than {limit_s:g} s"
                    raise TimeoutError(errno.ETIMEDOUT, why, str(path)) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def replace_atomically(path: Path, write: Callable[[BinaryIO], object], durable: bool = True) -> None:
    """Make `path` hold what `write` writes. A reader finds the old or the new content, even after a power cut.

    The content goes to a new file `.<name>.<16 hex digits>` beside `path`, which is renamed. A failure removes the new
    file; only a killed process leaves it. durable: False for what nobody needs after a power cut, which may then leave
    an empty file. Raises OSError, and what `write` raises.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(temporary, "xb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return once the names in `folder` are on the disk, where its file system can say so. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems sync no folders
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make `folder` and the folders above it where they are missing; their names are on the disk when this returns.

    Raises OSError.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)
