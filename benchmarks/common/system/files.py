"""Files that other users may have made, and files that must survive a power cut.

Lock files are opened without following links. Opening data never waits. What is written is whole or not there, and it
is on the disk when the call returns.

Needs no torch.
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import pwd
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from benchmarks.common.system.errors import UserError

LOCK_LIMIT_S = 60.0
FIRST_POLL_S, POLL_S = 0.001, 0.05  # most locks are held for a millisecond
CHUNK_BYTES = 1 << 16
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of fcntl.h and linux/fs.h
# Of one image's file: more than any photograph has, and less than what each reader may take of the memory.
MAX_IMAGE_BYTES = 1 << 28
HARD_LINK = "it is a hard link: the file has another name, too; remove it"


def home_folder() -> Path | None:
    """The user's home folder; None where neither HOME nor the system's list of users names one."""
    try:
        return Path(os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return None


def open_regular_file(path: str | Path, more_flags: int = 0) -> io.FileIO:
    """A regular file for reading, unbuffered. A symbolic link to one is followed, unless `more_flags` has O_NOFOLLOW.

    Raises OSError for what cannot be opened, and for anything but a regular file: opening a FIFO would wait for a
    writer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | more_flags)
    except OSError as error:
        if error.errno == errno.ELOOP and more_flags & os.O_NOFOLLOW:
            raise OSError(errno.ELOOP, "it is a link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # before fdopen, which names a folder by its descriptor
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb", 0)


def path_of_open_file(file: io.FileIO) -> str:
    """The path of an open file, without links: of what was opened, whatever lies under its name by now."""
    return os.readlink(f"/proc/self/fd/{file.fileno()}")


def read_regular_file(path: str | Path, limit_bytes: int) -> bytes:
    """The content of a regular file. A symbolic link to one is followed.

    Raises OSError as open_regular_file does, and for more than `limit_bytes`: a sparse file can claim terabytes.
    """
    return read_open_file(open_regular_file(path), limit_bytes, str(path))


def read_open_file(opened: BinaryIO, limit_bytes: int, path: str) -> bytes:
    """All that an open file has. Closes it. Raises OSError for more than `limit_bytes`."""
    with opened as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {limit_bytes}", path)
        content = file.read(size)  # not of limit_bytes, for which Python would take the memory at once
        while len(content) <= limit_bytes and (more := file.read(CHUNK_BYTES)):  # it has grown, or read() returned less
            content += more
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"it has more than {limit_bytes} bytes", path)
    return content


def open_set_file(path: str | Path) -> io.FileIO:
    """A regular file of a result set for reading, unbuffered. The set may be somebody else's, whose links could lead to
    any file of the reader: a path that is a symbolic link is refused. `refuse_links` of safe_names.py sees links above.

    Raises OSError for a link, and as open_regular_file does.
    """
    return open_regular_file(path, os.O_NOFOLLOW)


def read_set_file(path: str | Path, limit_bytes: int) -> bytes:
    """The content of a regular file of a result set. Raises OSError as open_set_file and read_regular_file do."""
    return read_open_file(open_set_file(path), limit_bytes, str(path))


def open_no_follow(path: str, flags: int) -> int:
    """An opener for `open`, which then follows no symbolic link, and refuses to write to a file that has another name.

    An archive can bring a hard link to any file of the user's below the folder in which it is unpacked. Raises OSError.
    """
    descriptor = os.open(path, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    if flags & os.O_ACCMODE != os.O_RDONLY and os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.EMLINK, HARD_LINK, str(path))
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def open_lock(path: Path) -> int:
    """A file descriptor of the lock file `path`, which is made where it is missing; its content is left alone.

    Only this user can open it from then on: whoever can read a lock file can hold its lock.

    Raises UserError where `path` is a link, symbolic or hard, or no regular file: another user may have put it there.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise UserError(f"the lock file {path} is not a regular file; remove it") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise UserError(f"the lock file {path} is not a regular file; remove it")
    if status.st_nlink > 1:
        os.close(descriptor)
        raise UserError(f"the lock file {path}: {HARD_LINK}")
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:  # an earlier version made it, or it was unpacked
        with contextlib.suppress(OSError):  # of a file system without modes
            os.fchmod(descriptor, 0o600)
    return descriptor


@contextlib.contextmanager
def hold_lock(path: Path, limit_s: float = LOCK_LIMIT_S) -> Iterator[int]:
    """Hold the lock file `path` alone; yields its file descriptor. limit_s: 0 does not wait.

    Raises TimeoutError where another process holds the lock for longer than `limit_s`, and what open_lock raises.
    """
    descriptor = open_lock(path)
    try:
        wait_for_lock(descriptor, path, limit_s)
        yield descriptor
    finally:
        os.close(descriptor)


def wait_for_lock(descriptor: int, path: Path, limit_s: float) -> None:
    """Lock an open file for this process alone, until `descriptor` is closed. path: its name, for the message.

    Raises TimeoutError where another process holds the lock for longer than `limit_s`.
    """
    deadline, pause_s = time.monotonic() + limit_s, FIRST_POLL_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                why = f"another process has held the lock for more than {limit_s:g} s"
                raise TimeoutError(errno.ETIMEDOUT, why, str(path)) from None
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, POLL_S)


def replace_atomically(
    path: Path, write: Callable[[BinaryIO], object], durable: bool = True, mode: int = 0o666
) -> None:
    """Make `path` hold what `write` writes. A reader finds the old or the new content, even after a power cut.

    The content goes to a new file `.<name>.<16 hex digits>` beside `path`, which is renamed. It is on the disk when
    this returns. Its mode is `mode` less the umask, from the first moment. A failure removes the new file; only a
    killed process leaves it.
    durable: False for what nobody needs after a power cut. The power cut may then leave an empty file.
    Raises OSError, and what `write` raises.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
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


def exchange(one: Path, other: Path) -> bool:
    """Give each of two files or folders of one file system the other's name, in one step (renameat2(2)).

    False, and nothing has changed, where the system or the file system cannot, as NFS.
    """
    function = getattr(ctypes.CDLL(None), "renameat2", None)  # since glibc 2.28
    if function is None:
        return False
    failed: int = function(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE)
    return not failed


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


def sync_file_system(folder: Path) -> None:
    """Return once all that was written to the file system of `folder` is on its disk. os.sync would wait for all disks.

    Raises OSError, also where something could not be written.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(folder))
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
