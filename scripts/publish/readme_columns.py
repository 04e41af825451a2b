"""The tables of columns in results/README.md, from the schema."""

from benchmarks.common.store.columns import COLUMNS, ROWS, RUNS
from scripts.publish.markdown_tables import markdown_table


def column_figures() -> dict[str, str]:
    """`columns.runs`: a row for each column of runs.csv. `columns.others`: a row for each other table."""
    runs = [(f"`{column.name}`", column.meaning) for column in RUNS]
    others = [
        (f"`{table}.csv`", ROWS[table], ", ".join(f"`{column.name}`" for column in columns))
        for table, columns in COLUMNS.items()
        if columns is not RUNS
    ]
    return {
        "columns.runs": markdown_table(("column of `runs.csv`", "is"), runs),
        "columns.others": markdown_table(("table", "a row is", "columns"), others),
    }
