"""Whether a program may write its tables and charts into a result set, which may be somebody else's.

Needs no torch.
"""

from pathlib import Path

from benchmarks.common.store.safe_names import refuse_links
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import refuse_folder_of_everybody, refuse_place_of_others

COPY = "copy the set to a folder that you have made, and name the copy"
NO_SET = "is not a folder of results; ./bench run makes one, results/latest is the newest"


def refuse_foreign_set(folder: Path) -> None:
    """Raises UserError for a set into which nothing may be written: it has links, cannot be written, or another user
    could put something else in its place, or into it, while it is read. A set that is not there is refused, too:
    another user may have moved it away, to put it back after the look."""
    refuse_links(folder)
    try:
        refuse_place_of_others(folder, COPY, is_made=True)
        refuse_folder_of_everybody(folder, COPY)
    except FileNotFoundError:
        raise UserError(f"{folder} {NO_SET}") from None
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror}; copy the set to a folder of yours") from None
