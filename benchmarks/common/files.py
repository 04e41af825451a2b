"""Files that others may have put there, and files that must last.

Lock files are opened without following links, and data without waiting for it. What is written is whole or not there,
and it is on the disk when the call returns.

Needs no torch.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from benchmarks.common.errors import UserError

LOCK_LIMIT_S = 60.0
POLL_S = 0.05


def read_regular(path: str | Path, limit_bytes: int) -> bytes:
    """The content of a regular file. A symbolic link to one is followed.

    Raises OSError for what cannot be opened, and for anything but a regular file of at most `limit_bytes`: opening a
    FIFO would wait for a writer, and a sparse file can claim terabytes.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has {status.st_size} bytes, more than {limit_bytes}", str(path))
        content = file.read(limit_bytes + 1)  # the file may have grown since
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", str(path))
    return content


def open_lock(path: Path) -> int:
    """A file descriptor of the lock file `path`, which is made where it is missing; its content is left alone.

    Raises UserError where `path` is a symbolic link or not a regular file: another user may have put it there.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UserError(f"the lock file {path} is not a regular file; remove it") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"the lock file {path} is not a regular file; remove it")
    return descriptor


@contextlib.contextmanager
def locked(path: Path, limit_s: float = LOCK_LIMIT_S) -> Iterator[int]:
    """Hold the lock file `path` alone; yields its file descriptor. limit_s: 0 does not wait.

    Raises TimeoutError where another process holds the lock for longer than `limit_s`, and what open_lock raises.
    """
    descriptor, deadline = open_lock(path), time.monotonic() + limit_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    why = f"another process has held the lock for more than {limit_s:g} s"
                    raise TimeoutError(errno.ETIMEDOUT, why, str(path)) from None
            time.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def replace_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make `path` hold what `write` writes: a reader, also one after a power cut, finds the old or the new content.

    The content goes to a new file `.<name>.<16 hex digits>` beside `path`, which is renamed. It is on the disk when
    this returns. The mode is what the umask says. A failure removes the new file; only a killed process leaves it.
    Raises OSError, and what `write` raises.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
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
