"""Draw strong and weak scaling over ranks, from a set that launchers/scaling.sh made.

    python -m scripts.report.scaling --results results/latest --strategy ddp

Strong: the configured global batch, cut into more and more pieces. Weak: the images a rank that the most ranks
get, at every number of ranks. Efficiency is throughput a rank over that of the fewest ranks. Prints a table,
writes scaling.csv and charts/scaling_<strategy>.png and .svg. Exit code: 1 where nothing can be drawn, 2 for a
mistake. Needs no torch.
"""

import csv
import dataclasses
import io
import sys
from pathlib import Path

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.errors import UserError
from benchmarks.common.results import cell, write_whole
from scripts.analysis.sets import Group, ResultSet, load_set, matched, show
from scripts.analysis.stats import ratio, strategy_throughput
from scripts.report.figures import COLORS, count, digits, footnote, make_figure, save_chart, troubles
from scripts.suite.preflight import chosen

COLUMNS = (
    "strategy",
    "mode",
    "ranks",
    "global_batch",
    "images_per_s",
    "ci_low",
    "ci_high",
    "efficiency",
    "efficiency_ci_low",
    "efficiency_ci_high",
    "num_runs",
    "oversubscribed",
)
MARKERS = {"strong": "s", "weak": "D"}


@dataclasses.dataclass(frozen=True)
class Options:
    """Draw strong and weak scaling over ranks."""

    results: Path
    strategy: str


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """One number of ranks. Efficiency (1.0 is ideal) is over the fewest ranks of the same mode; its interval is
    None there, and with one repeat."""

    num_ranks: int
    global_batch: int
    group: Group
    efficiency: float
    low: float | None
    high: float | None

    @property
    def oversubscribed(self) -> bool:
        return bool((self.group.ok.oversubscribed == "yes").any())


def scaling_points(results: ResultSet, strategy: str) -> dict[str, list[Point]]:
    """Points of the modes `strong` and `weak` that have two numbers of ranks or more, by ranks.

    Raises UserError where one number of ranks and one batch come in several settings.
    """
    groups = [group for group in results.groups if group.strategy == strategy and group.samples]
    groups = [group for group in groups if group.ok.world_size.iloc[0] > 0]
    if len({group.ok.world_size.iloc[0] for group in groups}) < 2:
        return {}
    timed: dict[tuple[int, int], Group] = {}
    for group in groups:
        shape = int(group.ok.world_size.iloc[0]), int(group.ok.global_batch.iloc[0])
        if shape in timed:
            raise UserError(
                f"{results.path} has {strategy} on {shape[0]} ranks in several settings: {timed[shape].label}, and "
                f"{group.label}; measure scaling in a set of its own: RESULTS=results/new"
            )
        timed[shape] = group
    # launchers/scaling.sh asks for no larger batch than the configured one, and for no fewer images a rank
    # than the most ranks get of it
    batch = max(batch for _, batch in timed)
    per_rank = min(size / ranks for ranks, size in timed)
    modes = {
        "strong": [shape for shape in sorted(timed) if shape[1] == batch],
        "weak": [shape for shape in sorted(timed) if shape[1] / shape[0] == per_rank],
    }
    return {
        mode: [_point(shape, timed[shape], shapes[0], timed[shapes[0]]) for shape in shapes]
        for mode, shapes in modes.items()
        if len({ranks for ranks, _ in shapes}) > 1
    }


def _point(shape: tuple[int, int], group: Group, base_shape: tuple[int, int], base: Group) -> Point:
    if group is base:
        return Point(*shape, group, 1.0, None, None)
    times, scale = ratio(group.samples, base.samples, paired=matched(group, base)), base_shape[0] / shape[0]
    low, high = (None if bound is None else bound * scale for bound in (times.low, times.high))
    return Point(*shape, group, times.value * scale, low, high)


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


def rows_of(strategy: str, modes: dict[str, list[Point]]) -> list[dict]:
    """The points as rows of scaling.csv."""
    rows = []
    for mode, points in modes.items():
        for point in points:
            estimate = point.group.throughput
            values = (
                strategy,
                mode,
                point.num_ranks,
                point.global_batch,
                estimate.value,
                estimate.low,
                estimate.high,
                point.efficiency,
                point.low,
                point.high,
                estimate.num_runs,
                point.oversubscribed,
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def table(rows: list[dict]) -> str:
    """The rows as text."""
    lines = [("mode", "ranks", "batch", "images/s", "95 % interval", "efficiency", "95 % interval", "n", "")]
    for row in rows:
        speed, efficiency = (
            "" if row[low] is None else f"[{row[low]:,.{places}f}, {row[high]:,.{places}f}]"
            for low, high, places in (("ci_low", "ci_high", 1), ("efficiency_ci_low", "efficiency_ci_high", 2))
        )
        lines.append(
            (
                row["mode"],
                str(row["ranks"]),
                str(row["global_batch"]),
                f"{row['images_per_s']:,.1f}",
                speed,
                f"{row['efficiency']:.2f}",
                efficiency,
                count(row["num_runs"], "run"),
                "oversubscribed" if row["oversubscribed"] else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ((text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def main(options: Options) -> int:
    results = load_set(options.results)
    strategy = chosen(options.strategy)[0]
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
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    write_whole(results.path / "scaling.csv", out.getvalue())
    charts = save_chart(scaling_chart(results, strategy, modes), results.path / "charts", f"scaling_{strategy}")
    print("\nwritten:", *(f"  {path}" for path in (results.path / "scaling.csv", *charts)), sep="\n")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options)))
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
