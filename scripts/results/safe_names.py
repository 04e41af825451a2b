"""Which names in a result set may be used, as a word or as a file of the set. Needs no torch."""

import re
from pathlib import Path

SAFE_NAME = re.compile(r"[A-Za-z0-9_][\w.+-]*", re.ASCII)  # a name of one run, strategy or value; no path, and no flag


def file_inside(folder: Path, name: str) -> Path | None:
    """The file `name` of the set in `folder`; None where there is none, or it lies elsewhere."""
    path = folder / name
    inside = path.resolve().is_relative_to(folder.resolve())
    return path if name and inside and path.is_file() else None
