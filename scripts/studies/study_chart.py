"""What the charts of several studies share: a point with its interval, what is left out, and how the program ends.

Needs no torch.
"""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from benchmarks.common.errors import UserError
from scripts.charts.figures import COLORS, RUN_STYLE, save_chart
from scripts.results.formatting import format_number
from scripts.results.intervals import strategy_throughput
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures

Points = TypeVar("Points")


@dataclasses.dataclass(frozen=True)
class StudyChartOptions:
    results: Path
    """The result set."""
    strategy: str


def save_study_chart(results: ResultSet, table: Path, figure: Figure, name: str) -> int:
    """Save the figure in charts/ of the set, say what was written with the `table`, and return exit code 0."""
    written = [table, *save_chart(figure, results.path / "charts", name)]
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    return 0


def report_nothing(results: ResultSet, what: str) -> int:
    """Say what the set lacks and what became of its runs; returns exit code 1."""
    has = f"it has {', '.join(dict.fromkeys(results.ok_runs.strategy)) or 'no runs'}"
    print(f"error: {what}; {'; '.join(describe_failures(results)) or has}", file=sys.stderr)
    return 1


def draw_point(axes: Axes, place: float, group: RunGroup, marker: str, hollow: bool = False) -> None:
    """Images/s of a group at a place of the x axis: geometric mean, 95 % interval, every run, and n."""
    estimate = group.timed_throughput
    if estimate.low is not None and estimate.high is not None:
        axes.plot([place, place], [estimate.low, estimate.high], color="black", linewidth=1.2, marker="_")
    face = "white" if hollow else COLORS[0]
    axes.plot(place, estimate.value, marker=marker, markersize=6, color=COLORS[0], markerfacecolor=face)
    rates = [strategy_throughput([run]).value for run in group.windows_of_runs]
    aside = axes.transData + ScaledTranslation(-7 / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot([place] * len(rates), rates, transform=aside, **RUN_STYLE)
    annotate_point(axes, place, estimate.value, f"{format_number(estimate.value)}\nn = {estimate.num_runs}")


def annotate_point(axes: Axes, x: float, y: float, text: str, above: bool = False) -> None:
    """Text at the right of a point."""
    place: dict[str, Any] = {"xytext": (5, 3), "va": "bottom"} if above else {"xytext": (6, -3), "va": "top"}
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    axes.annotate(text, (x, y), textcoords="offset points", fontsize=7, bbox=box, **place)


def points_or_warning(points_of: Callable[[], Points]) -> Points | None:
    """What `points_of` returns; None, and a warning on stderr, where a set has one point in several settings."""
    try:
        return points_of()
    except UserError as error:
        print(f"warning: a chart is left out: {error}", file=sys.stderr)
        return None
