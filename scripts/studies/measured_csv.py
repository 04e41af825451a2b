"""Figures that belong to no result set, in small CSV files; each row says of which commit, when and where it is.

What was measured last lies in results/measured/, which git ignores. What a README names is copied from there to
results/published/measured/.
"""

import csv
import datetime
import io
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_csv
from scripts.results.output_files import check_output
from scripts.shared import source_version


def add_rows(path: Path, rows: list[dict]) -> None:
    """Add `rows`, which have the same columns, to the CSV file `path`: whole or not at all, with commit, date, machine.

    Raises UserError where the file has other columns or cannot be written, and as check_output does.
    """
    check_output(path, makes_folder=True)
    columns = [*rows[0], *(of_all := origin())]
    append_csv(path, columns, [row | of_all for row in rows])


def set_tables_aside(folder: Path, names: Sequence[str]) -> None:
    """Move the tables of an earlier session, names without .csv, into a folder beside them that has the time of the
    newest, so that nothing measured is lost. Raises UserError where they cannot be moved."""
    there = [path for name in names if (path := folder / f"{name}.csv").exists()]
    if not there:
        return
    newest = datetime.datetime.fromtimestamp(max(path.stat().st_mtime for path in there), datetime.UTC)
    aside = folder / newest.strftime("earlier-%Y%m%d-%H%M%S")
    try:
        aside.mkdir(parents=True, exist_ok=True)
        for path in there:
            os.replace(path, aside / path.name)
    except OSError as error:
        raise UserError(f"cannot move {folder}/{there[0].name} to {aside}: {error.strerror}") from None
    print(f"{folder} has tables of an earlier session; they are in {aside} now", flush=True)


def origin() -> dict[str, str]:
    """commit (with -dirty where files were changed; empty without git), date, machine."""
    import torch

    from benchmarks.common.rank import device_name

    commit = source_version.commit() or ""
    commit += "-dirty" if commit and source_version.local_changes() else ""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    machine = f"{device_name(device)}, {len(os.sched_getaffinity(0))} cores"
    return {"commit": commit, "date": datetime.date.today().isoformat(), "machine": machine}


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a small CSV file. Raises UserError for what is no CSV file."""
    try:
        return [*csv.DictReader(io.StringIO(_read_text(path), newline=""))]
    except csv.Error as error:
        raise UserError(f"{path} is no CSV file ({error}); move it away") from None


def read_whole_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a small CSV file that are whole, since a kill may cut the last one; [] without the file."""
    if not path.exists():
        return []
    text = _read_text(path)
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    return [row for row in reader if None not in row and None not in row.values()]


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").replace("\0", "")
