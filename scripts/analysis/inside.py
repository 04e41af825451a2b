"""Which names in a result set may be used, as a word or as a file of the set. Needs no torch."""

import re
from pathlib import Path

WORD = re.compile(r"[A-Za-z0-9_][\w.+-]*", re.ASCII)  # a name of one run, strategy or value; no path, and no flag

COMMIT = re.compile(r"[0-9a-f]{3,64}")


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
