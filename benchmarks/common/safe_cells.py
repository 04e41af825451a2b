"""The cells of tables: text that no spreadsheet runs. Needs the standard library only."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.common.output import without_controls

FORMULA_STARTS = ("=", "+", "-", "@")


def format_cell(value: object) -> str:
    """One CSV cell: '' for None, text on one line without control characters, and never something a spreadsheet would
    run."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.9g}"
    text = str(value).encode(errors="backslashreplace").decode()  # a file name need not be UTF-8
    text = without_controls(" ".join(text.split()))
    return "'" + text if isinstance(value, str) and _is_formula(text) else text


def unguard_cell(text: str) -> str:
    """The text of a cell, without the mark that keeps a spreadsheet from running it."""
    return text[1:] if text.startswith("'") and _is_formula(text) else text


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
