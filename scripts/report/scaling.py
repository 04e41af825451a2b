"""Draw strong and weak scaling over ranks, from a set that make scaling made.

    python -m scripts.report.scaling --results results/latest --strategy ddp

Strong: the configured global batch, cut into more and more pieces. Weak: the images a rank that the most ranks
get, at every number of ranks. Efficiency is throughput a rank over that of the fewest ranks. Prints a table,
writes scaling.csv and charts/scaling_<strategy>.png and .svg. Exit code: 1 where nothing can be drawn, 2 for a
mistake. Needs no torch.
"""

import dataclasses
import sys
from pathlib import Path

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.errors import UserError
from scripts.analysis.scaling import Point, rows_of, scaling_points, table, write_scaling_csv
from scripts.analysis.sets import ResultSet, load_set
from scripts.analysis.stats import strategy_throughput
from scripts.analysis.words import count, digits, show
from scripts.report.figures import COLORS, footnote, make_figure, save_chart, troubles

MARKERS = {"strong": "s", "weak": "D"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw strong and weak scaling over ranks."""

    results: Path
    strategy: str


def scaling_chart(results: ResultSet, strategy: str, modes: dict[str, list[Point]]) -> Figure:
    """Throughput and efficiency over ranks, a column for each mode, with the ideal line."""
    title = f"{strategy}: scaling over ranks"
    figure, panels, _ = make_figure(title, [results], [2.2, 1.7], 0, num_columns=len(modes))
    notes = ["dashed: ideal; dots: repeats; line: 95 % interval, cut where it leaves the chart."]
    for column, (mode, points) in enumerate(modes.items()):
        speed, efficiency = panels[column], panels[len(modes) + column]
        base = points[0]
        _draw_speed(speed, points, mode)
        _draw_efficiency(efficiency, points, mode)
        efficiency.set_ylabel(f"efficiency, % of {count(base.num_ranks, 'rank')}")
        if mode == "strong":
            speed.set_title(f"strong: global batch {base.global_batch} on every number of ranks")
        else:
            speed.set_title(f"weak: {base.global_batch / base.num_ranks:g} images a rank")
        for axes in (speed, efficiency):
            axes.set_xticks([point.num_ranks for point in points])
            axes.set_xlabel("ranks")
            axes.margins(x=0.18)
            axes.grid(alpha=0.3)
    every = [point for points in modes.values() for point in points]
    threads = sorted({show(value) for point in every for value in point.group.ok.threads_per_rank})
    notes.append(f"threads a rank: {'/'.join(threads)}, at every number of ranks.")
    if any(point.oversubscribed for point in every):
        notes.append("hollow: oversubscribed, more ranks than cores; says nothing about how the strategy scales.")
    if any(point.group.throughput.low is None for point in every):
        notes.append("no interval: one repeat says nothing about the spread between runs.")
    footnote(figure, notes + [text for text in troubles(results) if text.startswith(strategy)])
    return figure


def _draw_speed(axes: Axes, points: list[Point], mode: str) -> None:
    base, ranks = points[0], [point.num_ranks for point in points]
    ideal = [base.group.throughput.value * number / base.num_ranks for number in ranks]
    axes.plot(ranks, ideal, color="black", linestyle="--", linewidth=0.9)
    axes.plot(ranks, [point.group.throughput.value for point in points], color=COLORS[0], linewidth=1)
    top = max(ideal)
    for point in points:
        estimate = point.group.throughput
        repeats = [strategy_throughput([run]).value for run in point.group.samples]
        top = max(top, *repeats)
        _draw_marker(axes, point, estimate.value, estimate.low, estimate.high, mode)
        axes.plot(
            [point.num_ranks] * len(repeats),
            repeats,
            linestyle="none",
            marker="o",
            markersize=3,
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=0.7,
            zorder=3,
        )
        _words(axes, point.num_ranks, estimate.value, f"{digits(estimate.value)}\nn = {estimate.num_runs}")
    axes.set_ylim(0, 1.12 * top)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("images/s")


def _draw_efficiency(axes: Axes, points: list[Point], mode: str) -> None:
    axes.axhline(100, color="black", linestyle="--", linewidth=0.9)
    ranks, values = [point.num_ranks for point in points], [100 * point.efficiency for point in points]
    axes.plot(ranks, values, color=COLORS[0], linewidth=1)
    for point, value in zip(points, values, strict=True):
        low, high = (None if bound is None else 100 * bound for bound in (point.low, point.high))
        _draw_marker(axes, point, value, low, high, mode)
        if point is not points[0]:
            _words(axes, point.num_ranks, value, f"{value:.0f} %", above=True)
    axes.set_ylim(0, 1.25 * max(100, *values))


def _draw_marker(axes: Axes, point: Point, value: float, low: float | None, high: float | None, mode: str) -> None:
    if low is not None:
        axes.plot([point.num_ranks] * 2, [low, high], color="black", linewidth=1.2, marker="_")
    face = "white" if point.oversubscribed else COLORS[0]
    axes.plot(point.num_ranks, value, marker=MARKERS[mode], markersize=6, color=COLORS[0], markerfacecolor=face)


def _words(axes: Axes, x: float, y: float, words: str, above: bool = False) -> None:
    place = {"xytext": (5, 3), "va": "bottom"} if above else {"xytext": (6, -2), "va": "top"}
    axes.annotate(words, (x, y), textcoords="offset points", fontsize=7, **place)


def main(options: Options) -> int:
    results, strategy = load_set(options.results), options.strategy
    modes = scaling_points(results, strategy)
    if not modes:
        reasons = "; ".join(troubles(results)) or "no such rows"
        print(
            f"error: {results.path} has no ok rows of {strategy} on two numbers of ranks or more; {reasons}",
            file=sys.stderr,
        )
        return 1
    rows = rows_of(strategy, modes)
    print(table(rows))
    path = write_scaling_csv(results, rows)
    charts = save_chart(scaling_chart(results, strategy, modes), results.path / "charts", f"scaling_{strategy}")
    print("\nwritten:", *(f"  {path}" for path in (path, *charts)), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
