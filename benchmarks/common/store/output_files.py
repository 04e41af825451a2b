"""Files that a user names by an option, and folders below results/: they are written only where no other user could
redirect them.

Needs no torch.
"""

from pathlib import Path

from benchmarks.common.store.columns import TABLES
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import make_own_folder, refuse_place_of_others

RECORDS = {"environment.json", "SHA256SUMS"}
RECORDS |= {"sweep.csv", "scaling.csv", "ablate.csv"}
"""What a set holds beside TABLES."""


def refuse_output_of_others(path: Path | None, option: str = "--output", *, makes_folder: bool = False) -> None:
    """Raises UserError where another user could put a link to a folder of this user's in the place of one above `path`,
    where `path` is a table of a result set, or where nothing can be written there. None passes.

    makes_folder: make the folder of `path` where it is missing, which is an error otherwise.
    """
    if path is None:
        return
    of_set = (path.parent / "runs.csv").exists() or (path.parent / "environment.json").exists()
    is_record = path.name in RECORDS and of_set
    if (path.name in {f"{table}.csv" for table in TABLES} or is_record) and path.exists():
        raise UserError(f"{path} is a file that runs have written; name another one: {option}")
    try:
        remedy = f"name a file in a folder that you have made: {option}"
        if makes_folder:
            make_own_folder(path.parent, remedy)
        else:
            refuse_place_of_others(path.parent, remedy, is_made=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file: {option}") from None


def refuse_results_of_others(folder: Path) -> None:
    """Raises UserError where another user could put another folder in the place of `folder`, which is results/ of the
    checkout or is in it, whatever RESULTS names. Both may be links to a disk of many users."""
    remedy = "put a folder of your own in the place of results/"
    try:
        refuse_place_of_others(folder, remedy, is_made=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; {remedy}") from None


def write_output(path: Path, text: str, option: str = "--output") -> None:
    """Write `text` whole or not at all. Raises UserError as refuse_output_of_others does."""
    refuse_output_of_others(path, option)
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name another file: {option}") from None
