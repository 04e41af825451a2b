"""Files that a user names by an option: whether they can be written, and writing them whole. Needs no torch."""

import tempfile
from pathlib import Path

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically

RECORDS = {f"{table}.csv" for table in TABLES} | {"environment.json", "sweep.csv", "loaders.csv"}
"""What runs and studies write into a set."""


def check_output(path: Path | None, option: str = "--output", *, makes_folder: bool = False) -> None:
    """Raises UserError where nothing can be written at `path`, and where it is a table of a result set: before hours of
    measuring, not after them. None passes.

    makes_folder: make the folder of `path` where it is missing, which is an error otherwise.
    """
    if path is None:
        return
    if path.name in RECORDS and path.exists() and (path.parent / "runs.csv").exists():
        raise UserError(f"{path} is a file that runs have written; name another one: {option}")
    try:
        if makes_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file: {option}") from None


def write_output(path: Path, text: str, option: str = "--output") -> None:
    """Write `text` whole or not at all. Raises UserError as check_output does."""
    check_output(path, option)
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file: {option}") from None
