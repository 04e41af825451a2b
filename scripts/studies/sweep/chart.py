"""Draw and print the sweeps of a result set that ./bench study sweep made.

    python -m scripts.studies.sweep.chart --results results/latest

Writes sweep.csv and charts/sweep_<strategy>_<key>.png. Exit code 1: no point was timed. Needs no torch.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from scripts.charts.bars import Bar, bar_chart
from scripts.charts.figures import COLORS, LINE_COLORS, MARKERS, RUN_STYLE, make_figure, save_chart
from scripts.results.formatting import format_number, plural_of_several
from scripts.results.intervals import Estimate, RatioEstimate, strategy_throughput
from scripts.results.result_set import ResultSet, load_set
from scripts.results.set_text import describe_failures, describe_rows
from scripts.shared.programs import run_main_and_exit
from scripts.studies.sweep.points import (
    RANKS,
    SweepResult,
    TimedPoint,
    parse_number,
    results_of_sweeps,
    sweep_rows,
    table,
    write_csv,
)

LOG_FROM = 8  # largest over smallest value from which an axis is logarithmic


@dataclasses.dataclass(frozen=True)
class SweepChartOptions:
    results: Path = Path("results/latest")


def sweep_chart(result: SweepResult) -> Figure:
    """Over the values where these are numbers, else a bar a point."""
    numbers = [number for point in result.timed if (number := parse_number(point.label)) is not None]
    return chart_over_numbers(result, numbers) if len(numbers) == len(result.timed) else bars_of_points(result)


def bars_of_points(result: SweepResult) -> Figure:
    """Ratios to the named point, or images/s where it was not timed."""
    to = next((point for point in result.timed if point.label == result.sweep.to), None)
    over, style = (to.speed, "{:.2f}") if to else (1.0, "{:,.0f}")
    bars = []
    for point in result.timed:
        ratio = point.ratio or RatioEstimate(1.0, None, None, 0)
        shown: RatioEstimate | Estimate = ratio if to else point.group.timed_throughput
        runs = [each / over for each in runs_of(point)]
        bars.append(Bar(point.label, shown.value, shown.low, shown.high, runs, style))
    label = f"throughput over that of: {result.sweep.to}" if to else "images/s"
    lines = {result.sweep.to: 1.0} if to else {}
    about = describe_rows(result.timed[-1].group.ok_runs)
    return bar_chart(title_of(result), about, bars, label, "ratio [95 %]" if to else "images/s [95 %]", lines)


def chart_over_numbers(result: SweepResult, numbers: list[float]) -> Figure:
    """Images/s of every run, with 95 % intervals; below it the bubble of a pipeline."""
    timed = result.timed
    has_bubbles = any(point.bubbles for point in timed)
    heights = [3.0, *([1.6] if has_bubbles else [])]
    n = plural_of_several([point.group.timed_throughput.num_runs for point in timed], "run")
    notes = [f"n = {n} a point; circles: runs; lines: 95 % intervals"]
    if result.sweep.key == RANKS:
        notes.append("dashed: ideal")
        if result.sweep.exchange is not None:
            notes.append("dotted: a sum, one rank's step plus the all-reduce's time")
    if any(point.oversubscribed for point in timed):
        notes.append("white: more ranks than cores")
    about = f"{describe_rows(timed[-1].group.ok_runs)}\n{'; '.join(notes)}"
    figure, panels = make_figure(title_of(result), about, heights)
    draw_speeds(panels[0], result, numbers)
    if has_bubbles:
        draw_bubbles(panels[1], timed, numbers)
    return figure


def title_of(result: SweepResult) -> str:
    """The point of the highest mean, of ranks the most, and its ratio to the named one."""
    sweep, timed = result.sweep, result.timed
    what = f"{sweep.strategy}: {sweep.key}{', weak scaling' if sweep.weak else ''}"
    shown = timed[-1] if sweep.key == RANKS else max(timed, key=lambda point: point.speed)
    if shown.ratio is None:
        return f"{what}: {shown.label} has the highest mean"
    return f"{what}: {shown.label} {'are' if sweep.key == RANKS else 'is'} {shown.ratio.text()} x {sweep.to}"


def runs_of(point: TimedPoint) -> list[float]:
    return [strategy_throughput([run]).value for run in point.group.windows_of_runs]


def draw_speeds(axes: Axes, result: SweepResult, numbers: list[float]) -> None:
    timed, key = result.timed, result.sweep.key
    axes.plot(numbers, [point.speed for point in timed], color=COLORS[0], linewidth=1)
    is_log = min(numbers) > 0 and max(numbers) >= LOG_FROM * min(numbers)
    if is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    if key == RANKS:
        draw_ideal_and_sum(axes, result, numbers)
    for number, point in zip(numbers, timed, strict=True):
        face = "white" if point.oversubscribed else COLORS[0]
        style: dict[str, Any] = {"fmt": "s", "color": COLORS[0], "markerfacecolor": face, "ecolor": "black"}
        interval = point.group.timed_throughput
        reach = [[point.speed - (interval.low or point.speed)], [(interval.high or point.speed) - point.speed]]
        axes.errorbar(number, point.speed, yerr=reach, capsize=3, **style)
        axes.plot([number] * len(runs_of(point)), runs_of(point), **RUN_STYLE)
        text, place = format_number(point.speed), (number, point.speed)
        axes.annotate(text, place, (7, -4), textcoords="offset points", fontsize=7, va="top")
    axes.set_xticks(numbers, [point.label for point in timed])
    axes.set_ylim(top=1.5 * max(speed for point in timed for speed in runs_of(point)))  # few rounds have long intervals
    if key == RANKS and is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    axes.margins(x=0.12)
    axes.grid(alpha=0.3)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_xlabel(key)
    axes.set_ylabel("images/s")


def draw_ideal_and_sum(axes: Axes, result: SweepResult, numbers: list[float]) -> None:
    ideal = [result.timed[0].speed * number / numbers[0] for number in numbers]
    axes.plot(numbers, ideal, color="black", linestyle="--", linewidth=0.9)
    more = [*map(int, numbers), 2 * int(numbers[-1]), 4 * int(numbers[-1])]
    sums = [(number, speed) for number in more if (speed := result.summed_speed(number)) is not None]
    if sums:
        axes.plot(*zip(*sums, strict=True), color="black", linestyle=":", linewidth=1.2)


def draw_bubbles(axes: Axes, timed: list[TimedPoint], places: list[float]) -> None:
    """The share of its time that each rank waited, beside (p - 1) / (m + p - 1)."""
    with_bubbles = [(place, point.bubbles) for place, point in zip(places, timed, strict=True) if point.bubbles]
    theory = [100 * bubbles[0].ideal for _, bubbles in with_bubbles]
    shown = [place for place, _ in with_bubbles]
    axes.plot(shown, theory, color="black", linestyle="--", marker="_", label="(p - 1) / (m + p - 1)")
    for rank in sorted({each.rank for _, bubbles in with_bubbles for each in bubbles}):
        waited = [100 * each.waited.value for _, bubbles in with_bubbles for each in bubbles if each.rank == rank]
        style: dict[str, Any] = {"color": LINE_COLORS[rank % len(LINE_COLORS)], "marker": MARKERS[rank % len(MARKERS)]}
        axes.plot(shown, waited, linewidth=1, label=f"rank {rank} waits", **style)
    axes.set_xticks(places, [point.label for point in timed])
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bubble, % of a step")
    axes.legend(frameon=False, fontsize=7)
    axes.grid(alpha=0.3)


def draw_all(results: ResultSet) -> dict[str, Figure]:
    """A chart of each sweep of which two points were timed, by its name."""
    found: dict[str, Figure] = {}
    for result in results_of_sweeps(results):
        sweep = result.sweep
        name = "_".join(["sweep", sweep.strategy, *sweep.key.split(), *(["weak"] if sweep.weak else [])])
        same = sum(each.startswith(name) for each in found)
        if len(result.timed) > 1:
            found[f"{name}_{same + 1}" if same else name] = sweep_chart(result)
    return found


def main(options: SweepChartOptions) -> int:
    results = load_set(options.results)
    found = results_of_sweeps(results)
    for result in found:
        print(f"\n{result.sweep.strategy}, {result.sweep.flags}\n{table(result)}")
    if not any(result.timed for result in found):
        why = "; ".join(describe_failures(results)) or "no run is there"
        print(f"error: no point of a sweep in {results.path} was timed: {why}", file=sys.stderr)
        return 1
    written = [write_csv(results.path, [row for result in found for row in sweep_rows(result)])]
    for name, figure in draw_all(results).items():
        written += save_chart(figure, results.path / "charts", name)
    print("\nwritten:", *(f"  {path}" for path in written), sep="\n")
    return 0


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(SweepChartOptions)))
