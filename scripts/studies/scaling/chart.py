"""Draw strong and weak scaling over ranks, from a set that make scaling made.

    python -m scripts.studies.scaling.chart --results results/latest --strategy ddp

Strong: the configured global batch, cut into more and more pieces. Weak: the images a rank that the most ranks
get, at every number of ranks. Efficiency is throughput a rank over that of the fewest ranks. Prints a table,
writes scaling.csv and charts/scaling_<strategy>.png and .svg. Exit code: 1 where nothing can be drawn, 2 for a
mistake. Needs no torch.
"""

import dataclasses
from pathlib import Path

import pandas
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.common.system.programs import run_program
from scripts.charts.chart_command import report_nothing, save_study_chart
from scripts.charts.figures import (
    COLORS,
    annotate_point,
    describe_failures,
    describe_rows,
    draw_point,
    footnote,
    make_figure,
)
from scripts.sets.result_set import BASELINE, ResultSet, load_set
from scripts.sets.safe_names import refuse_links
from scripts.stats.formatting import format_setting, plural
from scripts.studies.scaling.analysis import Point, rows_of, scaling_points, table, write_scaling_csv

LOG_FROM = 8  # most ranks over fewest from which axes are logarithmic
MARKERS = {"strong": "s", "weak": "D"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw strong and weak scaling over ranks."""

    results: Path
    strategy: str


def scaling_chart(results: ResultSet, strategy: str, modes: dict[str, list[Point]]) -> Figure:
    """Throughput and efficiency over ranks, a column for each mode, with the ideal line."""
    every = [point for points in modes.values() for point in points]
    about = describe_rows(pandas.concat([point.group.ok for point in every]).drop_duplicates("run_id"))
    title = f"{strategy}: scaling over ranks"
    figure, panels, _ = make_figure(title, [results], [2.2, 1.7], 0, num_columns=len(modes), about=about)
    notes = ["dashed: ideal; dots: repeats; line: 95 % interval, cut where it leaves the chart."]
    for column, (mode, points) in enumerate(modes.items()):
        speed, efficiency = panels[column], panels[len(modes) + column]
        base, wide = points[0], points[-1].num_ranks >= LOG_FROM * points[0].num_ranks
        for axes in (speed, efficiency):
            if wide:
                axes.set_xscale("log")
                axes.minorticks_off()
            axes.set_xticks([point.num_ranks for point in points], [f"{point.num_ranks}" for point in points])
            axes.set_xlabel("ranks")
            axes.margins(x=0.18)
            axes.grid(alpha=0.3)
        _draw_speed(speed, points, mode, wide)
        _draw_efficiency(efficiency, points, mode)
        efficiency.set_ylabel(f"efficiency, % of {plural(base.num_ranks, 'rank')}")
        if mode == "strong":
            speed.set_title(f"strong: global batch {base.global_batch} on every number of ranks")
        else:
            speed.set_title(f"weak: {base.global_batch / base.num_ranks:g} images a rank")
    threads = sorted({format_setting(value) for point in every for value in point.group.ok.threads_per_rank})
    notes.append(f"threads a rank: {'/'.join(threads)}, at every number of ranks.")
    if any(point.oversubscribed for point in every):
        notes.append("hollow: oversubscribed, more ranks than cores; says nothing about how the strategy scales.")
    if any(point.group.throughput.low is None for point in every):
        notes.append("no interval: one repeat says nothing about the spread between runs.")
    footnote(figure, notes + [text for text in describe_failures(results) if text.startswith(strategy)])
    return figure


def _draw_speed(axes: Axes, points: list[Point], mode: str, wide: bool) -> None:
    base, ranks = points[0], [point.num_ranks for point in points]
    ideal = [base.group.throughput.value * number / base.num_ranks for number in ranks]
    values = [point.group.throughput.value for point in points]
    axes.plot(ranks, ideal, color="black", linestyle="--", linewidth=0.9)
    axes.plot(ranks, values, color=COLORS[0], linewidth=1)
    for point in points:
        draw_point(axes, point.num_ranks, point.group, MARKERS[mode], hollow=point.oversubscribed)
    if wide:
        axes.set_yscale("log")
        axes.set_ylim(0.4 * min(values), 1.6 * max([*ideal, *values]))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.12 * max([*ideal, *values]))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("images/s, both scales logarithmic" if wide else "images/s")


def _draw_efficiency(axes: Axes, points: list[Point], mode: str) -> None:
    axes.axhline(100, color="black", linestyle="--", linewidth=0.9)
    ranks, values = [point.num_ranks for point in points], [100 * point.efficiency for point in points]
    axes.plot(ranks, values, color=COLORS[0], linewidth=1)
    for point, value in zip(points, values, strict=True):
        if point.low is not None:
            bounds = [100 * point.low, 100 * point.high]
            axes.plot([point.num_ranks] * 2, bounds, color="black", linewidth=1.2, marker="_")
        face = "white" if point.oversubscribed else COLORS[0]
        axes.plot(point.num_ranks, value, marker=MARKERS[mode], markersize=6, color=COLORS[0], markerfacecolor=face)
        over = point.over_single
        words = "" if over is None else f"\n({100 * over.value / point.num_ranks:.0f} % of {BASELINE})"
        if point is not points[0] or words:
            annotate_point(axes, point.num_ranks, value, f"{value:.0f} %{words}", above=True)
    axes.set_ylim(0, 1.25 * max(100, *values))


def main(options: Options) -> int:
    refuse_links(options.results)
    results, strategy = load_set(options.results), options.strategy
    modes = scaling_points(results, strategy)
    if not modes:
        return report_nothing(results, f"{results.path} has no ok rows of {strategy} on two numbers of ranks or more")
    rows = rows_of(strategy, modes)
    print(table(rows))
    written = write_scaling_csv(results, rows)
    return save_study_chart(results, written, scaling_chart(results, strategy, modes), f"scaling_{strategy}")


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(Options)))
