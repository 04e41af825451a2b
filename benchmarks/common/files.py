"""Open files that others may have put there: lock files without following links, and data without waiting for it.

Needs no torch.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from benchmarks.common.errors import UserError

LOCK_LIMIT_S = 60.0
POLL_S = 0.05
PIECE_BYTES = 1 << 16
# Of an image's file: more than any photograph has, and no more than a machine can spare for each reader.
LARGEST_IMAGE_BYTES = 1 << 28


def open_regular(path: str | Path) -> BinaryIO:
    """A regular file for reading, unbuffered. A symbolic link to one is followed.

    Raises OSError for what cannot be opened, and for anything but a regular file: opening a FIFO would wait for a
    writer.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb", 0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_regular(path: str | Path, limit_bytes: int) -> bytes:
    """The content of a regular file. A symbolic link to one is followed.

    Raises OSError as open_regular does, and for more than `limit_bytes`: a sparse file can claim terabytes.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {limit_bytes}", str(path))
        content = file.read(size)  # takes the memory that the file needs, not that of the limit
        while len(content) <= limit_bytes and (more := file.read(PIECE_BYTES)):  # it has grown, or came in pieces
            content += more
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
