"""The tables of a result set, a folder of CSV files joined by `run_id`. A missing value is an empty cell, never 0.

Needs no torch; only `read_table` needs pandas.
"""

import contextlib
import csv
import io
import os
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.common.columns import TABLES, TEXT_COLUMNS
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, without_controls

if typing.TYPE_CHECKING:
    import pandas

SCHEMA = 2  # of runs.csv
STATUSES = ("ok", "failed", "timeout", "interrupted", "skipped", "invalid")
WARM_UP = "warm-up"  # the status of round 0, even where it failed
GUARDED_STARTS = ("=", "+", "-", "@", "'")  # a spreadsheet runs the first four


def append_rows(results: Path, table: str, rows: Iterable[Mapping[str, object]]) -> None:
    """Each row whole or not at all. What a killed writer left is cut off. Raises ValueError for a value of another
    column, and UserError where the folder cannot be written or the file has other columns."""
    path = results / f"{table}.csv"
    header, _, lines = table_text(TABLES[table], rows).partition("\n")
    with lock_tables(results), open(path, "ab+", buffering=0) as file:
        file.seek(0)
        old = file.read()
        size = old.rfind(b"\n") + 1
        if size and not old.startswith(f"{header}\n".encode()):
            raise UserError(f"{path} has other columns, as of another version; use a new folder, or move it away")
        text = (lines if size else f"{header}\n{lines}").encode()
        try:
            file.truncate(size)
            while text:
                text = text[file.write(text) :]
            os.fsync(file.fileno())
        except OSError:  # such as of a full disk
            file.truncate(size)
            raise


@contextlib.contextmanager
def lock_tables(folder: Path) -> Iterator[None]:
    """Raises UserError."""
    try:
        with hold_lock(folder / ".writing"):
            yield
    except OSError as error:
        raise UserError(f"cannot write results in {folder}: {error.strerror}; earlier rows are kept") from None


def table_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Raises ValueError for a value of another column."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: format_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def format_cell(value: object) -> str:
    """On one line, and nothing that a terminal or a spreadsheet would run."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = without_controls(" ".join(str(value).split())).encode(errors="backslashreplace").decode()
    return "'" + text if isinstance(value, str) and text.startswith(GUARDED_STARTS) else text


def read_table(results: Path, table: str) -> "pandas.DataFrame":
    """With every column; empty text is ''. Lines that are not whole are skipped, with a warning. Raises OSError."""
    import pandas

    path = results / f"{table}.csv"
    text = path.read_text(encoding="utf-8-sig", errors="replace") if path.exists() else ""
    # line by line, so that half a quoted cell swallows no rows
    header, *rows = [next(csv.reader([line]), []) for line in text.split("\n")]
    torn = rows.pop() if rows else []  # what follows the last line end
    whole = [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
    if num_broken := len(rows) - len(whole) + bool(torn):
        print(f"warning: {path}: {num_broken} of its lines are not whole and are skipped", file=sys.stderr)
    columns = {}
    for name in TABLES[table]:
        cells = [row.get(name, "") for row in whole]
        if name in TEXT_COLUMNS:
            columns[name] = pandas.Series([without_controls(cell.removeprefix("'")) for cell in cells], dtype=str)
        else:
            columns[name] = pandas.to_numeric(pandas.Series(cells, dtype=object), errors="coerce")
    return pandas.DataFrame(columns)
