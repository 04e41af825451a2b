"""Draw throughput against the value of one option, from a set that make sweep made.

    python -m scripts.report.sweep --results results/latest --strategy ddp --key bucket_cap_mb

Prints a table, writes its lines to sweep.csv of the set (lines of other sweeps stay) and draws
charts/sweep_<strategy>_<key>.png and .svg. Exit code: 1 where no run is ok, 2 for a mistake. Needs no torch.
"""

import dataclasses
import sys
from pathlib import Path

import tyro
from matplotlib.figure import Figure

from benchmarks.common.config import find_key
from benchmarks.common.errors import UserError
from scripts.analysis.sets import Group, ResultSet, load_set
from scripts.analysis.stats import strategy_throughput
from scripts.analysis.sweep import number, sweep_points, table, write_sweep_csv
from scripts.analysis.words import digits
from scripts.report.figures import COLORS, footnote, make_figure, save_chart, troubles

LOG_FROM = 8  # largest over smallest value from which an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw throughput against the value of one option."""

    results: Path
    strategy: str
    key: str
    """A field of the configuration, such as bucket_cap_mb."""


def sweep_chart(results: ResultSet, strategy: str, key: str, points: dict[str, Group]) -> Figure:
    """Images/s over the value of `key`, with every repeat, the 95 % interval and n."""
    figure, (axes,), _ = make_figure(f"{strategy}: throughput against {key}", [results], [3.0], 0)
    places = _places(list(points))
    values = [group.throughput.value for group in points.values()]
    axes.plot(places, values, color=COLORS[0], marker="s", markersize=5, linewidth=1)
    shown = list(values)
    for place, group in zip(places, points.values(), strict=True):
        estimate = group.throughput
        repeats = [strategy_throughput([run]).value for run in group.samples]
        shown += repeats
        if estimate.low is not None:
            axes.plot([place, place], [estimate.low, estimate.high], color="black", linewidth=1.2, marker="_")
        axes.plot(
            [place] * len(repeats),
            repeats,
            linestyle="none",
            marker="o",
            markersize=3.5,
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=0.7,
            zorder=3,
        )
        axes.annotate(
            f"{digits(estimate.value)}\nn = {estimate.num_runs}",
            (place, estimate.value),
            xytext=(6, -5),
            textcoords="offset points",
            va="top",
            fontsize=7,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )
    numbers = [number(value) for value in points]
    if None not in numbers and min(numbers) > 0 and max(numbers) >= LOG_FROM * min(numbers):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, list(points))
    axes.margins(x=0.12)
    # an interval that is wide for want of repeats must not flatten the points
    span = max(max(shown) - min(shown), 0.05 * max(shown))
    axes.set_ylim(max(0.0, min(shown) - 0.6 * span), max(shown) + 0.6 * span)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(alpha=0.3)
    axes.set_xlabel(key)
    axes.set_ylabel("images/s   (axis cut, not from 0)" if axes.get_ylim()[0] > 0 else "images/s")
    notes = ["square: mean of repeats; dots: repeats; line: 95 % interval, cut where it leaves the chart."]
    if any(group.throughput.low is None for group in points.values()):
        notes.append("no interval: one repeat says nothing about the spread between runs.")
    own = [group.label for group in results.groups if group.strategy == strategy]
    footnote(figure, notes + [text for text in troubles(results) if text.startswith(tuple(own))])
    return figure


def _places(values: list[str]) -> list[float]:
    """Where values stand on the axis: themselves where they are numbers that one scale can show, else 0, 1, 2 ..."""
    numbers = [number(value) for value in values]
    if None in numbers or (min(numbers) <= 0 and max(numbers) > LOG_FROM):
        return [float(place) for place in range(len(values))]
    return numbers


def main(options: Options) -> int:
    results, key, strategy = load_set(options.results), find_key(options.key), options.strategy
    points = sweep_points(results, strategy, key)
    if not points:
        reasons = "; ".join(troubles(results)) or f"it has {', '.join(dict.fromkeys(results.ok.strategy)) or 'no runs'}"
        print(f"error: no ok run of {strategy} in {results.path} has {key} in its settings; {reasons}", file=sys.stderr)
        return 1
    print(table(key, points))
    written = [write_sweep_csv(results, strategy, key, points)]
    figure = sweep_chart(results, strategy, key, points)
    written += save_chart(figure, results.path / "charts", f"sweep_{strategy}_{key}")
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
