"""The tables of columns in results/README.md, from the schema.

from scripts.publish.readme_columns import column_figures
"""

from benchmarks.common.store.columns import MEANINGS, ROWS, RUN
from scripts.pages.markdown import markdown_table


def column_figures() -> dict[str, str]:
    """`columns.runs`: a row for each meaning of runs.csv. `columns.others`: a row for each other table."""
    runs = [(", ".join(names), meaning) for meaning, names in columns_of_meanings("runs").items()]
    others = [
        (f"`{table}.csv`", row, "; ".join(_cell(*each) for each in columns_of_meanings(table).items()))
        for table, row in ROWS.items()
        if table != "runs"
    ]
    return {
        "columns.runs": markdown_table(("column of `runs.csv`", "is"), runs),
        "columns.others": markdown_table(("table", "a row is", "columns"), others),
    }


def _cell(meaning: str, names: list[str]) -> str:
    """The columns with their meaning, which is left out where it is the name itself."""
    return ", ".join(names) + ("" if meaning in (RUN, names[0].strip("`")) else f": {meaning}")


def columns_of_meanings(table: str) -> dict[str, list[str]]:
    """The columns of a table that share a meaning, by that meaning, each as a span of code."""
    found: dict[str, list[str]] = {}
    for name, meaning in MEANINGS[table].items():
        found.setdefault(meaning, []).append(f"`{name}`")
    return found
