"""Small CSV files as text, and text as Markdown's tables: what the READMEs' figures are made of."""

import io
from collections.abc import Iterable
from pathlib import Path

import pandas

from benchmarks.common.store.safe_names import read_text
from benchmarks.common.system.errors import UserError


def read_cells(path: Path, columns: Iterable[str]) -> pandas.DataFrame:
    """A small CSV file, every cell as text; without rows where it is missing. Raises UserError for missing columns."""
    columns = [*columns]
    if not path.exists():
        return pandas.DataFrame(columns=columns, dtype=str)
    rows = pandas.read_csv(io.StringIO(read_text(path)), dtype=str, keep_default_na=False)
    if missing := [name for name in columns if name not in rows]:
        raise UserError(f"{path} lacks the columns {', '.join(missing)}")
    return rows


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table on lines of its own; '' without rows."""
    header, rows = [*header], [*rows]
    lines = [f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |\n" for line in (header, *rows)]
    lines.insert(1, "|---" * len(header) + "|\n")
    return f"\n\n{''.join(lines)}" if rows else ""


def percents(values: Iterable[float]) -> str:
    """18 to 37 %, from the least to the most; '' without values."""
    texts = [f"{value:.0f}" for value in sorted(values)]
    if not texts:
        return ""
    return f"{texts[0]} %" if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]} %"


def describe_origin(rows: pandas.DataFrame) -> str:
    """Where and when rows were measured, and of which commit."""
    return "; ".join(dict.fromkeys(f"{row.machine}, {row.date}, commit {row.commit}" for row in rows.itertuples()))
