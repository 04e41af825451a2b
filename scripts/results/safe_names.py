"""Which names in a result set may be used as a file of the set. Needs no torch."""

from pathlib import Path


def file_inside(folder: Path, name: str) -> Path | None:
    """The file `name` of the set in `folder`; None where there is none, or it lies elsewhere."""
    path = folder / name
    inside = path.resolve().is_relative_to(folder.resolve())
    return path if name and inside and path.is_file() else None
