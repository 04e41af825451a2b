"""The tables of a result set: the one function that writes them, and the one that reads them. columns.py has their
columns.

A set is a folder `results/<name>/` of tidy CSV files joined by `run_id`. Units are in the column names; a
missing value is an empty cell, never 0. Needs no torch; only `read_table` needs pandas.
"""

import contextlib
import csv
import glob
import io
import json
import re
import shlex
import sys
import typing
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.columns import TABLES, TEXT_COLUMNS
from benchmarks.common.errors import UserError
from benchmarks.common.files import LOCK_LIMIT_S, hold_lock, replace_atomically
from benchmarks.common.output import without_controls
from benchmarks.common.safe_cells import cells_of_line, format_cell, unguard_cell

if typing.TYPE_CHECKING:
    import pandas

SCHEMA = 2
STATUSES = ("ok", "failed", "timeout", "interrupted", "skipped", "invalid")
WARM_UP = "warm-up"  # the status of a run of round 0, which only warms the machine, even where it failed


def append_rows(
    results: Path, table: str, rows: Iterable[dict], *, replace: bool = False, skip_existing: bool = False
) -> None:
    """Add rows to `results/<table>.csv`; `replace` and `skip_existing` are those of append_csv.

    A file of an older schema gets the columns that it lacks, empty in its rows.
    """
    columns = TABLES[table]
    key = "run_id" if "run_id" in columns else columns[0]
    append_csv(results / f"{table}.csv", columns, rows, key=key, replace=replace, skip_existing=skip_existing)


def append_csv(
    path: Path,
    columns: Sequence[str],
    rows: Iterable[dict],
    *,
    key: str = "",
    replace: bool,
    skip_existing: bool = False,
) -> None:
    """Add rows to a CSV file, whole or not at all; they are on the disk when this returns.

    columns: of a new file. key: a file with this column gets the other columns that it lacks, empty in its rows; '': a
    file must have exactly `columns`. replace: the rows replace those of an old file. skip_existing: a row is left out
    if a line already begins with its first cell. One process writes at a time, to a new file that replaces the old one.
    A half-written last line is dropped. Raises KeyError for an unknown column, and UserError where the folder cannot be
    written, the file has other columns, or another process is writing for too long.
    """
    with lock_tables(path.parent):
        remove_left_over(path)
        # without a key the user has named the file, and what another program has written there is not replaced either
        lines = _whole_lines(_text_of(path)) if path.exists() and not (key and replace) else []
        header = cells_of_line(lines[0]) if lines else list(columns)
        if key and key not in header:
            raise UserError(f"{path} does not start with a line of column names; move it away")
        if not key and header != list(columns):
            raise UserError(f"{path} has other columns than {', '.join(columns)}; move it away")
        lines = [] if replace else lines
        out = io.StringIO()
        missing = [name for name in columns if name not in header]
        out.writelines(line + "\n" for line in (_widened(lines, header, missing) if missing else lines))
        writer = csv.DictWriter(out, header + missing, restval="", lineterminator="\n")
        if not lines:
            writer.writeheader()
        known = {line.partition(",")[0] for line in lines[1:]} if skip_existing else set()
        for row in rows:
            unknown = set(row) - set(columns)
            if unknown:
                raise KeyError(f"{path.name} has no column {sorted(unknown)}")
            cells = {name: format_cell(value) for name, value in row.items()}
            if cells.get(header[0]) not in known:
                writer.writerow(cells)
        write_text_atomically(path, out.getvalue())


def remove_left_over(path: Path) -> None:
    """Remove what killed writers of the file left beside it. Only who holds the folder's lock may call this."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if re.fullmatch("[0-9a-f]{16}", left.name.removeprefix(f".{path.name}.")):
            left.unlink(missing_ok=True)


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8-sig", errors="surrogateescape")


def _whole_lines(text: str) -> list[str]:
    """The lines of a table, without a last one that was cut off."""
    *lines, last = text.split("\n")
    return [*lines, last] if last and lines and len(cells_of_line(last)) == len(cells_of_line(lines[0])) else lines


def _widened(lines: list[str], header: list[str], missing: list[str]) -> Iterator[str]:
    """The lines of a table with more columns: their names in the first, empty cells in every whole row."""
    yield ",".join([lines[0], *missing])
    for line in lines[1:]:
        yield line + "," * len(missing) if len(cells_of_line(line)) == len(header) else line


def write_text_atomically(path: Path, text: str) -> None:
    """Make `path` hold `text`. A reader finds the old or the new content, even after a power cut. Raises OSError."""
    content = text.encode("utf-8", "surrogateescape")
    replace_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: object) -> None:
    """`value` as JSON, whole or not at all."""
    write_text_atomically(path, json.dumps(value, indent=1) + "\n")


@contextlib.contextmanager
def lock_tables(folder: Path) -> Iterator[None]:
    """Hold the folder's lock while a table in it is read, changed and written again. Raises UserError for a folder that
    cannot be written, and a process that keeps the lock."""
    lock = folder / ".writing"
    try:
        with hold_lock(lock, LOCK_LIMIT_S):
            yield
    except TimeoutError as error:
        raise UserError(
            f"cannot write results in {folder}: {error.strerror}, {lock}; end that process "
            f"(fuser {shlex.quote(str(lock))} names it), and run this again; earlier rows are kept"
        ) from None
    except OSError as error:
        raise UserError(f"cannot write results in {folder}: {error.strerror}; earlier rows are kept") from None


def read_table(results: Path, table: str) -> "pandas.DataFrame":
    """`results/<table>.csv` as a pandas DataFrame with every column of the schema, empty where missing.

    Numbers are numbers; other columns are text, '' where empty. A line that is not whole is skipped, with a warning. A
    missing file is an empty table. Raises OSError for a file that cannot be read.
    """
    return read_numbered_table(results, table)[0]


def read_numbered_table(results: Path, table: str) -> "tuple[pandas.DataFrame, list[int]]":
    """`read_table`'s table, and the number of each row's line in the file, from 2 on."""
    import pandas

    path = results / f"{table}.csv"
    rows, numbers = [], []
    if path.exists():
        first, *lines = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
        header = cells_of_line(first)
        for number, line in enumerate(lines, start=2):
            # line by line: cells hold no line ends, and half a quoted one must not swallow rows
            cells = cells_of_line(line)
            if cells and len(cells) == len(header):
                rows.append(dict(zip(header, cells, strict=True)))
                numbers.append(number)
            elif line:
                _warn(path, number, "is not a whole row and is skipped")
    converted = {}  # a frame whose columns are replaced one by one takes several times as long
    for name in TABLES[table]:
        cells = [row.get(name, "") for row in rows]
        if name in TEXT_COLUMNS:
            converted[name] = pandas.Series([without_controls(unguard_cell(cell)) for cell in cells], dtype=str)
        else:
            converted[name] = pandas.to_numeric(pandas.Series(cells, dtype=object), errors="coerce")
    frame = pandas.DataFrame(converted)
    if table == "runs":
        for number, status in zip(numbers, frame.status, strict=True):
            if status not in (*STATUSES, WARM_UP):
                _warn(path, number, f"has the unknown status {status!a}; the run counts as not ok")
    return frame, numbers


def _warn(path: Path, line: int, what: str) -> None:
    print(f"warning: {path}, line {line} {what}", file=sys.stderr)
