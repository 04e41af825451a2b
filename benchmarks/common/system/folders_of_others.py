"""Whether another user of the machine could put something else in the place of a folder, or links to private files into
a data set. Needs no torch.

refuse_folder_of_others(Path("results/mine/logs"), os.geteuid(), "choose another folder")
"""

import errno
import io
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import make_folder, open_regular_file, path_of_open_file
from benchmarks.common.system.repository import ROOT

MAX_LINKS = 40  # as many as Linux follows in one path
ALL_USERS = 2**32 - 1
TRUSTED_OWNERS = "TRUSTED_OWNERS"
"""Environment variable: numbers of users whom the user trusts as root, such as 1001 or 1001,1002."""


def refuse_folder_of_others(folder: Path, own_user_id: int, remedy: str, is_made: bool = True) -> None:
    """Raises UserError for a folder that another user could change, or could replace by another folder or a link.

    `folder`, each folder above it and each link in its path must belong to this user, to root (or whoever owns /, as in
    some containers), to the owner of the checkout or to one of TRUSTED_OWNERS. None may be writable by everybody,
    unless it is sticky, as /tmp is: there only the owner of an entry replaces it. Folders above the checkout pass: who
    can replace those can replace the code. A group's rights are the group's own choice: a folder above may also belong
    to somebody who shares it with a group of this user's, as the project folders of clusters do.

    In a user namespace that does not map every user, as that of a rootless container, the folders of root and of all
    other users outside have one owner, the overflow user, mostly 65534. They pass, since nothing tells them apart.

    own_user_id: the owner of new files in `folder`, which some network file systems choose. It is trusted on that file
    system only. remedy: ends the message. is_made: False for a folder that may be yet to be made: what there is of its
    path is looked at. Raises OSError for a path that cannot be read, or that is not there with is_made.
    """
    trusted = _trusted_users()
    device, last = nearest_folder(folder).stat().st_dev, Path(os.path.realpath(folder))
    groups = {os.getegid(), *os.getgroups()}
    for path in _path_of(folder):
        if path in ROOT.parents:
            continue
        try:
            status = path.lstat()
        except FileNotFoundError:
            if is_made:  # another user may have moved it away until this look is over
                raise
            return
        shown = shlex.quote("".join(letter if letter.isprintable() else "?" for letter in str(path)))
        is_folder, mode = stat.S_ISDIR(status.st_mode), status.st_mode
        is_shared = is_folder and path != last and mode & 0o022 == stat.S_IWGRP and status.st_gid in groups
        is_own = status.st_uid in trusted or (status.st_uid, status.st_dev) == (own_user_id, device)
        if not is_own and not is_shared:
            raise UserError(
                f"{shown} belongs to another user ({status.st_uid}); {remedy}, or set {TRUSTED_OWNERS}="
                f"{status.st_uid} if you trust this user as you trust root"
            )
        if is_folder and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            can_change = os.geteuid() in (0, status.st_uid)
            remedy = f"run: chmod o-w {shown}, or {remedy}" if can_change else remedy
            raise UserError(f"everybody may write to {shown}; {remedy}")


def refuse_place_of_others(folder: Path, remedy: str, is_made: bool = False) -> None:
    """refuse_folder_of_others for a folder that may be yet to be made. A temporary file says to whom new files there
    belong. Raises OSError where none can be made."""
    with tempfile.TemporaryFile(dir=nearest_folder(folder)) as probe:
        refuse_folder_of_others(folder, os.fstat(probe.fileno()).st_uid, remedy, is_made)


def refuse_folder_of_everybody(folder: Path, remedy: str) -> None:
    """Raises UserError for a folder into which everybody may put files, sticky or not: a set's charts/ would be a link.
    One that is not there passes. Raises OSError."""
    if folder.exists() and folder.stat().st_mode & stat.S_IWOTH:
        raise UserError(f"everybody may write to {shlex.quote(str(folder))}; {remedy}")


def make_own_folder(folder: Path, remedy: str) -> None:
    """Make `folder` where it is missing. Raises UserError as refuse_place_of_others does, and OSError."""
    refuse_place_of_others(folder, remedy)
    make_folder(folder)
    refuse_place_of_others(folder, remedy, is_made=True)  # in /tmp another user may have made it


def use_own_temporary_folder() -> None:
    """Have this process and its children use one temporary folder, which no other user could replace.

    torchrun unpickles what lies in it. Python falls back to /tmp where TMPDIR names a folder that is not there, and
    bash does not: another user could make that folder between the two looks. Raises UserError for a folder of others.
    """
    remedy = "set TMPDIR to a folder that you have made"
    try:
        folder = tempfile.gettempdir()
        refuse_place_of_others(Path(folder), remedy, is_made=True)  # it is there: Python has written into it
    except OSError as error:
        raise UserError(f"there is no temporary folder: {error.strerror}; {remedy}") from None
    os.environ["TMPDIR"] = folder


def open_through_own_links(path: str, real_folder: str) -> io.FileIO:
    """A regular file of a data set for reading. `path` is below the data set's folder, whose realpath `real_folder` is.

    The data set's author could link to a private file of the reader. So a link counts only where it leads to inside of
    the folder, or belongs to a user as refuse_folder_of_others trusts. Looked at is what was opened: the author may put
    a link there meanwhile. Raises UserError for other links, and OSError as open_regular_file does.
    """
    file = open_regular_file(path)
    try:
        opened = path_of_open_file(file)
        if not _is_inside(opened, real_folder) and _follow_own_links(path, real_folder) != opened:
            raise UserError(f"{path!r} leads elsewhere by now; has another user changed it?")
    except BaseException:
        file.close()
        raise
    return file


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _follow_own_links(path: str, real_folder: str) -> str:
    """Where `path` leads. Raises UserError for a link of others on the way, from `real_folder` on: the user has typed
    what is above."""
    trusted = _trusted_users()
    left, place, num_links, is_below = [*reversed(os.path.join(os.getcwd(), path).split("/"))], "/", 0, False
    while left:
        name = left.pop()
        place, above = os.path.normpath(os.path.join(place, name)), place
        is_below = is_below or _is_inside(above, real_folder)
        # one descriptor, for the owner and the target of one and the same link
        descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISLNK(status.st_mode):
                continue
            target = os.readlink("", dir_fd=descriptor)
        finally:
            os.close(descriptor)
        if is_below and status.st_uid not in trusted:
            raise UserError(
                f"{place!r} is a link of another user ({status.st_uid}), and leads out of {real_folder!r}, maybe to a "
                f"private file of yours; put a copy in its place, or set {TRUSTED_OWNERS}={status.st_uid} if you trust "
                "this user as you trust root"
            )
        if (num_links := num_links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        place = above
        left += reversed(target.split("/"))
        if target.startswith("/"):
            place = "/"
    return place


def nearest_folder(folder: Path) -> Path:
    """`folder`, or the nearest one above it that is there."""
    return next(each for each in (folder, *folder.parents, Path("/")) if os.path.exists(each))


def _trusted_users() -> set[int]:
    """This user, root (or whoever owns /), the owner of the checkout and TRUSTED_OWNERS. Raises UserError."""
    return {0, os.geteuid(), os.stat("/").st_uid, ROOT.stat().st_uid} | _users_that_look_alike() | _trusted_owners()


def _trusted_owners() -> set[int]:
    """TRUSTED_OWNERS. Raises UserError for anything but numbers of users."""
    text = os.environ.get(TRUSTED_OWNERS, "")
    if text and not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10})*", text, re.ASCII):
        raise UserError(f"{TRUSTED_OWNERS} is {text[:40]!r}, but must be numbers of users, such as 1001 or 1001,1002")
    return {int(number) for number in text.split(",") if number}


def _path_of(folder: Path) -> Iterator[Path]:
    """/ and each folder and link through which the system comes to `folder`, in its order. All without links above."""
    left, place, num_links = [*reversed(folder.absolute().parts[1:])], Path("/"), 0
    yield place
    while left:
        name = left.pop()
        if name == "..":
            place = place.parent
            continue
        yield (path := place / name)
        if not path.is_symlink():
            place = path
            continue
        if (num_links := num_links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
        target = path.readlink()
        place = Path("/") if target.is_absolute() else place
        left += reversed([part for part in target.parts if part != target.anchor])


def _users_that_look_alike() -> set[int]:
    """The overflow user of a user namespace that does not map every user; none elsewhere."""
    try:
        ranges = Path("/proc/self/uid_map").read_text().splitlines()
        if sum(int(line.split()[2]) for line in ranges) >= ALL_USERS:
            return set()
        return {int(Path("/proc/sys/kernel/overflowuid").read_text())}
    except (OSError, ValueError, IndexError):
        return set()
