"""The tables of columns in results/README.md, from the schema.

from scripts.publish.readme_columns import column_figures
"""

from benchmarks.common.store.columns import COLUMNS, ROWS, RUN_ID, RUNS, Column
from scripts.publish.markdown_tables import markdown_table


def column_figures() -> dict[str, str]:
    """`columns.runs`: a row for each column of runs.csv. `columns.others`: a row for each other table."""
    others = [
        (f"`{table}.csv`", ROWS[table], "; ".join(map(_cell, columns)))
        for table, columns in COLUMNS.items()
        if columns is not RUNS
    ]
    return {
        "columns.runs": markdown_table(
            ("column of `runs.csv`", "is"), [(f"`{column.name}`", column.meaning) for column in RUNS]
        ),
        "columns.others": markdown_table(("table", "a row is", "columns"), others),
    }


def _cell(column: Column) -> str:
    """The column and its meaning; of the key of all tables the name alone."""
    return f"`{column.name}`" + ("" if column is RUN_ID else f": {column.meaning}")
