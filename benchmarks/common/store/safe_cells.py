"""The cells of tables: text that neither a spreadsheet runs nor a terminal obeys.

Tables may come from somebody else, or hold names of somebody else's files. Needs the standard library only.
"""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common.system.output import without_controls

# The last four are full-width, which some spreadsheets take for the first four.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")
UNSEEN = re.compile("[\0\ufeff]")
# Excel obeys sep=, and reads a text that begins with ID as SYLK, with its macros, whatever the file's name.
OTHER_FORMAT = re.compile(r"[\s\"]*(?:sep\s*=|ID)", re.IGNORECASE)
# LibreOffice skips blanks before a quote, and a comma after it is text; for csv it is a comma between cells.
LATE_QUOTE = re.compile(r"\s+\"")


def format_cell(value: object) -> str:
    """One CSV cell: '' for None, text on one line, and never something a spreadsheet would run or that would control a
    terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value).encode(errors="backslashreplace").decode()  # a file name need not be UTF-8
    text = without_controls(" ".join(text.replace("\0", "").split()))  # for who prints the file: a path may hold them
    return "'" + text if isinstance(value, str) and _is_formula(text) else text


def unguard_cell(text: str) -> str:
    """The text of a cell, without the mark that keeps a spreadsheet from running it."""
    return text[1:] if text.startswith("'") and _is_formula(text) else text


def without_formulas(text: str) -> str:
    """A table with format_cell's mark before each cell that a spreadsheet would run, for a table that somebody else
    wrote. Numbers stay as they are. So do lines without such a cell. A line that ends within a quoted cell is left out:
    read_table skips it, and a spreadsheet would go on with the next line.

    Byte order marks and null characters are left out: a spreadsheet skips them, and the cell begins after them. A text
    that begins with sep= or ID gets the mark, since a spreadsheet would read it by other rules."""
    text = UNSEEN.sub("", text)
    if OTHER_FORMAT.match(text):
        text = "'" + text
    return "\n".join(guarded for line in text.split("\n") if (guarded := _guarded_line(line)) is not None)


def _guarded_line(line: str) -> str | None:
    cells = cells_of_line(line)
    if not cells:
        return None if line else line
    guarded = [f"'{cell}" if _needs_mark(cell) or LATE_QUOTE.match(cell) else cell for cell in cells]
    if guarded == cells:
        return line
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(guarded)
    return out.getvalue()


def has_formula_after_semicolon(text: str) -> bool:
    """Whether a spreadsheet would run a part of a table if semicolons or tabs, not commas, separated its cells, as the
    settings of many countries say."""
    parts = [part.lstrip('" ') for line in text.splitlines() for part in re.split("[;\t]", line)[1:]]
    return any(map(_needs_mark, parts))


def _needs_mark(cell: str) -> bool:
    return _is_formula(cell) and not cell.startswith("'") and not _is_number_text(cell)


def _is_number_text(text: str) -> bool:
    """Whether the text of a cell is a number, such as -1.5."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_formula(text: str) -> bool:
    """Whether a spreadsheet would run it, or would once marks like ours, blanks and quotes are taken away."""
    return text.lstrip("'\" ").startswith(FORMULA_STARTS)


def cells_of_line(line: str) -> list[str]:
    """The cells of one line; none where it ends within a quoted cell."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return []


def table_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """A table as the text of a CSV file: the names, then a line for each row, empty where the row has no such value.

    Raises ValueError for a value of another column.
    """
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: format_cell(value) for name, value in row.items()} for row in rows)
    return out.getvalue()
