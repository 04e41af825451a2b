"""Draw throughput against the value of one option, from a set that ./bench study sweep made.

    python -m scripts.studies.sweep.chart --results results/latest --strategy ddp --key bucket_cap_mb

Prints a table, writes its lines to sweep.csv of the set (lines of other sweeps stay) and draws
charts/sweep_<strategy>_<key>.png and .svg. Exit code: 1 where no run is ok, 2 for a mistake. Needs no torch.
"""

import dataclasses
from pathlib import Path

import pandas
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.config import FIELDS, find_field
from scripts.charts.figures import COLORS, footnote, make_figure
from scripts.results.formatting import format_number, format_setting
from scripts.results.intervals import strategy_throughput
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.set_text import describe_failures, describe_rows
from scripts.shared.programs import run_main_and_exit
from scripts.shared.strategy_list import BASELINE
from scripts.studies.study_chart import StudyChartOptions, draw_point, report_nothing, save_study_chart
from scripts.studies.sweep.analysis import FOLDERS, parse_number, sweep_points, table, write_sweep_csv

LOG_FROM = 8  # largest over smallest value from which an axis is logarithmic
UNITS = {
    "bucket_cap_mb": "MiB",
    "split_size": "images of a micro-batch",
    "global_batch": "images",
    "image_size": "pixels",
    "workers": "processes a rank",
    "microbatches": "a batch",
}


@dataclasses.dataclass(frozen=True)
class SweepChartOptions(StudyChartOptions):
    """Draw throughput against the value of one option."""

    key: str
    """A field of the configuration, such as bucket_cap_mb."""


def sweep_chart(results: ResultSet, strategy: str, key: str, points: dict[str, RunGroup]) -> Figure:
    """Images/s over the value of `key`, with every run, the 95 % interval, n, and the baseline."""
    about = describe_rows(pandas.concat([group.ok_runs for group in points.values()]))
    figure, (axes,), _ = make_figure(f"{strategy}: throughput against {key}", [results], [3.0], 0, about=about)
    _draw_points(axes, points)
    default = format_setting(FIELDS[key].default) if key in FIELDS else ""
    positions, _ = axis_positions(list(points))
    axes.set_xticks(positions, [f"{value}\n(default)" if value == default else value for value in points])
    axes.margins(x=0.12)
    baseline_top, baseline_note = _draw_baseline(axes, results, points)
    # an interval that is wide for want of rounds must not flatten the points
    top = max(strategy_throughput([run]).value for group in points.values() for run in group.windows_of_runs)
    top = max(top, baseline_top)
    highest = max(group.timed_throughput.high or 0 for group in points.values())
    axes.set_ylim(0, 1.05 * max(1.1 * top, min(highest, 1.5 * top)))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(alpha=0.3)
    axes.set_xlabel(f"{key}, {UNITS[key]}" if key in UNITS else key)
    axes.set_ylabel("images/s")
    notes = [
        "square: geometric mean of runs; dots: runs; line: 95 % interval, cut where it leaves the chart.",
        baseline_note,
    ]
    if any(group.timed_throughput.low is None for group in points.values()):
        notes.append("no interval: one round says nothing about the spread between runs.")
    labels = [group.label for group in results.groups if group.strategy == strategy]
    footnote(figure, notes + [text for text in describe_failures(results) if text.startswith(tuple(labels))])
    return figure


def _draw_points(axes: Axes, points: dict[str, RunGroup]) -> None:
    """Each value's throughput. A line joins the points only where the values are numbers."""
    positions, numeric = axis_positions(list(points))
    if numeric:
        axes.plot(positions, [group.timed_throughput.value for group in points.values()], color=COLORS[0], linewidth=1)
        if max(positions) >= LOG_FROM * min(positions) > 0:
            axes.set_xscale("log")
            axes.minorticks_off()
    for position, group in zip(positions, points.values(), strict=True):
        draw_point(axes, position, group, "s")


def _draw_baseline(axes: Axes, results: ResultSet, points: dict[str, RunGroup]) -> tuple[float, str]:
    """Draw the baseline; returns (its highest images/s, 0.0 without one; a note for below the chart).

    Where all points have the same baseline, it is a dashed line with its interval as a band; else a mark at each point.
    The baseline is that of this set, else that of the set around it.
    """
    if len({results.baseline_of(group) for group in points.values()}) > 1:
        return _mark_baselines(axes, results, points)
    name, baseline = BASELINE, _common_baseline(results, points)
    if baseline is None and (around := _set_around(results.path)):
        name = f"{BASELINE} of the set around this one, in another session"
        baseline = _common_baseline(around, points)
    if baseline is None:
        return 0.0, f"without {BASELINE}: there are no runs of it in the same settings."
    if name == BASELINE and _measured_apart(baseline, points):
        name += ", measured before or after these runs and not among them"
    estimate = baseline.timed_throughput
    axes.axhline(estimate.value, color="black", linestyle="--", linewidth=0.9, zorder=1)
    note = f"dashed: {name}: {format_number(estimate.value)} images/s, n = {estimate.num_runs}"
    if estimate.low is not None and estimate.high is not None:
        axes.axhspan(estimate.low, estimate.high, color="black", alpha=0.08, linewidth=0, zorder=0)
        note += "; band: its 95 % interval"
    return estimate.value, f"{note}."


def _measured_apart(baseline: RunGroup, points: dict[str, RunGroup]) -> bool:
    """Whether the baseline's runs all came before the points' runs, or all after them: it took no turns with them."""
    started = pandas.concat([group.ok_runs.started_at for group in points.values()])
    of_baseline = baseline.ok_runs.started_at
    return bool(of_baseline.max() < started.min() or of_baseline.min() > started.max())


def _set_around(path: Path) -> ResultSet | None:
    """The set in which the suite has put the sweep `path`; None where the folder above is no set."""
    folder = path.resolve()
    is_in_set = folder.name in FOLDERS and (folder.parent / "runs.csv").exists()
    return load_set(folder.parent) if is_in_set else None


def _mark_baselines(axes: Axes, results: ResultSet, points: dict[str, RunGroup]) -> tuple[float, str]:
    """A black dash, with its 95 % interval, at each point that has a baseline in its own settings."""
    highest = 0.0
    positions, _ = axis_positions(list(points))
    for position, group in zip(positions, points.values(), strict=True):
        if baseline := results.baseline_of(group):
            estimate = baseline.timed_throughput
            axes.plot(
                [position], [estimate.value], color="black", marker="_", markersize=22, linestyle="none", zorder=1
            )
            if estimate.low is not None and estimate.high is not None:
                axes.plot([position] * 2, [estimate.low, estimate.high], color="black", linewidth=5, alpha=0.2)
            highest = max(highest, estimate.value)
    return highest, f"long dash: {BASELINE} with the same value; its shade: 95 % interval."


def _common_baseline(results: ResultSet, points: dict[str, RunGroup]) -> RunGroup | None:
    """The baseline that all points have; None where they have several, or none."""
    baselines = {results.baseline_of(group) for group in points.values()}
    return baselines.pop() if len(baselines) == 1 else None


def axis_positions(values: list[str]) -> tuple[list[float], bool]:
    """(the position of each value on the axis, whether the axis is one of numbers). Values that are no numbers are
    categories at 0, 1, 2 ..."""
    numbers = [number for value in values if (number := parse_number(value)) is not None]
    if len(numbers) < len(values) or (min(numbers) <= 0 and max(numbers) > LOG_FROM):
        return [float(position) for position in range(len(values))], False
    return numbers, True


def main(options: SweepChartOptions) -> int:
    results, key, strategy = load_set(options.results), find_field(options.key), options.strategy
    points = sweep_points(results, strategy, key)
    if not points:
        return report_nothing(results, f"no ok run of {strategy} in {results.path} has {key} in its settings")
    print(table(key, points))
    written = write_sweep_csv(results, strategy, key, points)
    return save_study_chart(results, written, sweep_chart(results, strategy, key, points), f"sweep_{strategy}_{key}")


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(SweepChartOptions)))
