"""Which names in a result set may be used, as a word or as a file of the set. Needs no torch."""

import errno
import os
import re
import stat
from pathlib import Path

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import open_set_file, read_set_file

SAFE_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*", re.ASCII)  # a name of one run, strategy or value; no path, and no flag

COMMIT = re.compile(r"[0-9a-f]{3,64}")
LIMIT_BYTES = 2**28  # of a small file
STOP = re.compile(r"stop-([0-9]+|at)")  # links that RunFolder makes, to a number
STEPS = re.compile(r"-?[0-9]+")


def file_inside(folder: Path, name: str) -> Path | None:
    """The regular file `name` of the set in `folder`; None where there is none, or it lies elsewhere, also by a link.

    Sets come from others, and may not choose which other files are read. A name with `..` is none either: where the set
    has links, it may name a file inside here and one outside in a copy without them.
    """
    path = folder / name
    if name.startswith("/") or ".." in Path(name).parts:
        return None
    try:
        found = path.resolve().is_relative_to(folder.resolve()) and path.is_file()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, links in a circle
        return None
    return path if found and name else None


def refuse_links(folder: Path) -> None:
    """Raises UserError, which names it, for a link in the set in `folder`, symbolic or hard: what is written into the
    set would land where the link leads, and what is read could be any file of the reader. A pipe or a device, for which
    a reader would wait, is refused as well, and so is a folder that cannot be listed. `folder` itself may be a link,
    and may not be there yet.

    Sets come from others. The numbers that a stopped run leaves as links are no such links.
    """
    for place, folders, files in os.walk(folder, onerror=_refuse_unlisted):
        for name in sorted((*folders, *files)):
            path = Path(place, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # another process has renamed or removed its temporary file
                continue
            except PermissionError as error:
                raise UserError(
                    f"{ascii(str(path))[1:-1]} cannot be looked at ({error.strerror}); chmod u+rx its folder, or move "
                    "that away"
                ) from None
            mode = status.st_mode
            if stat.S_ISREG(mode) and status.st_nlink > 1:
                raise UserError(
                    f"{ascii(str(path))[1:-1]} is a hard link: the file has another name, too, and may be none of the "
                    "set's; copy the set (cp -r), and name the copy, or remove the file"
                )
            if stat.S_ISLNK(mode) and not (STOP.fullmatch(name) and STEPS.fullmatch(_target(path))):
                raise UserError(
                    f"{ascii(str(path))[1:-1]} is a link, and no link in a set is followed; remove it, or put a copy "
                    "of what it leads to in its place"
                )
            if not (stat.S_ISLNK(mode) or stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                raise UserError(f"{ascii(str(path))[1:-1]} is neither a file nor a folder; take it out of the set")


def _refuse_unlisted(error: OSError) -> None:
    """For os.walk, which leaves out what it cannot list. Links in a folder that can be entered can still be opened by
    their names."""
    is_gone = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)
    if not is_gone and os.access(error.filename, os.X_OK):
        path = ascii(str(error.filename))[1:-1]
        raise UserError(f"{path} cannot be listed ({error.strerror}), and may hold links; chmod u+rx, or move it away")


def _target(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # a run that has just ended took it away
        return "0"


def read_text(path: Path) -> str:
    """The text of a small file, with a replacement for what is not UTF-8. It never waits.

    Raises UserError for what cannot be read, is a link or no regular file, or is larger than LIMIT_BYTES.
    """
    try:
        return read_set_file(path, LIMIT_BYTES).decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; move it away") from None


def first_line(path: Path) -> str:
    """The beginning of a text, up to its first line's end or 4096 bytes. Raises UserError for what cannot be read, or
    is a link or no regular file."""
    try:
        with open_set_file(path) as file:
            return file.readline(4096).decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; move it away") from None
