"""How programs that draw one study of a set end: its chart and file are written and named, or why there are none.

    from scripts.studies.study_chart import report_nothing, save_study_chart

Needs no torch.
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

from scripts.charts.figures import save_chart
from scripts.sets.result_set import ResultSet
from scripts.sets.set_text import describe_failures


def save_study_chart(results: ResultSet, table: Path, figure: Figure, name: str) -> int:
    """Save the figure in charts/ of the set, say what was written with the `table`, and return exit code 0."""
    written = [table, *save_chart(figure, results.path / "charts", name)]
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    return 0


def report_nothing(results: ResultSet, what: str) -> int:
    """Say what the set lacks and what became of its runs; returns exit code 1."""
    has = f"it has {', '.join(dict.fromkeys(results.ok.strategy)) or 'no runs'}"
    print(f"error: {what}; {'; '.join(describe_failures(results)) or has}", file=sys.stderr)
    return 1
