"""Draw throughput against the value of one option, from a set that make sweep made.

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

from benchmarks.common.config.config import FIELDS, find_field
from benchmarks.common.system.programs import run_program
from scripts.charts.chart_command import report_nothing, save_study_chart
from scripts.charts.figures import COLORS, describe_failures, describe_rows, draw_point, footnote, make_figure
from scripts.sets.result_set import BASELINE, Group, ResultSet, load_set
from scripts.sets.safe_names import refuse_links
from scripts.stats.formatting import format_number, format_setting
from scripts.stats.intervals import strategy_throughput
from scripts.studies.sweep.analysis import number, sweep_points, table, write_sweep_csv

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
class Options:
    """Draw throughput against the value of one option."""

    results: Path
    strategy: str
    key: str
    """A field of the configuration, such as bucket_cap_mb."""


def sweep_chart(results: ResultSet, strategy: str, key: str, points: dict[str, Group]) -> Figure:
    """Images/s over the value of `key`, with every repeat, the 95 % interval, n, and the baseline."""
    about = describe_rows(pandas.concat([group.ok for group in points.values()]))
    figure, (axes,), _ = make_figure(f"{strategy}: throughput against {key}", [results], [3.0], 0, about=about)
    places, numeric = _places(list(points))
    if numeric:  # between categories there is nothing
        axes.plot(places, [group.throughput.value for group in points.values()], color=COLORS[0], linewidth=1)
        if max(places) >= LOG_FROM * min(places) > 0:
            axes.set_xscale("log")
            axes.minorticks_off()
    for place, group in zip(places, points.values(), strict=True):
        draw_point(axes, place, group, "s")
    default = format_setting(FIELDS[key].default) if key in FIELDS else ""
    axes.set_xticks(places, [f"{value}\n(default)" if value == default else value for value in points])
    axes.margins(x=0.12)
    single, about_single = _draw_baseline(axes, results, points)
    # an interval that is wide for want of repeats must not flatten the points
    top = max(strategy_throughput([run]).value for group in points.values() for run in group.samples)
    top = max(top, single)
    highest = max(group.throughput.high or 0 for group in points.values())
    axes.set_ylim(0, 1.05 * max(1.1 * top, min(highest, 1.5 * top)))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.grid(alpha=0.3)
    axes.set_xlabel(f"{key}, {UNITS[key]}" if key in UNITS else key)
    axes.set_ylabel("images/s")
    notes = [
        "square: geometric mean of repeats; dots: repeats; line: 95 % interval, cut where it leaves the chart.",
        about_single,
    ]
    if any(group.throughput.low is None for group in points.values()):
        notes.append("no interval: one repeat says nothing about the spread between runs.")
    own = [group.label for group in results.groups if group.strategy == strategy]
    footnote(figure, notes + [text for text in describe_failures(results) if text.startswith(tuple(own))])
    return figure


def _draw_baseline(axes: Axes, results: ResultSet, points: dict[str, Group]) -> tuple[float, str]:
    """A dashed line at the one baseline that all points have, and its interval as a band, or a mark at each point for
    its own; returns the highest images/s (0.0 without one) and what it is.

    It is of the same set, else of the set in whose folder this one is.
    """
    if len({results.baseline_of(group) for group in points.values()}) > 1:
        return _mark_baselines(axes, results, points)
    name, found = BASELINE, _common_baseline(results, points)
    around = results.path.resolve().parent
    if found is None and (around / "runs.csv").exists():
        name, found = (
            f"{BASELINE} of the set around this one, in another sitting",
            _common_baseline(load_set(around), points),
        )
    if found is None:
        return 0.0, f"without {BASELINE}: there are no runs of it in the same settings."
    estimate = found.throughput
    axes.axhline(estimate.value, color="black", linestyle="--", linewidth=0.9, zorder=1)
    words = f"dashed: {name}: {format_number(estimate.value)} images/s, n = {estimate.num_runs}"
    if estimate.low is not None:
        axes.axhspan(estimate.low, estimate.high, color="black", alpha=0.08, linewidth=0, zorder=0)
        words += "; band: its 95 % interval"
    return estimate.value, f"{words}."


def _mark_baselines(axes: Axes, results: ResultSet, points: dict[str, Group]) -> tuple[float, str]:
    """A black dash, with its 95 % interval, at each point that has a baseline in its own settings."""
    highest = 0.0
    for place, group in zip(_places(list(points))[0], points.values(), strict=True):
        if base := results.baseline_of(group):
            estimate = base.throughput
            axes.plot([place], [estimate.value], color="black", marker="_", markersize=22, linestyle="none", zorder=1)
            if estimate.low is not None:
                axes.plot([place, place], [estimate.low, estimate.high], color="black", linewidth=5, alpha=0.2)
            highest = max(highest, estimate.value)
    return highest, f"long dash: {BASELINE} with the same value; its shade: 95 % interval."


def _common_baseline(results: ResultSet, points: dict[str, Group]) -> Group | None:
    found = {results.baseline_of(group) for group in points.values()}
    return found.pop() if len(found) == 1 else None


def _places(values: list[str]) -> tuple[list[float], bool]:
    """Where values stand on the axis, and whether it is one of numbers: else they are categories, at 0, 1, 2 ..."""
    numbers = [number(value) for value in values]
    if None in numbers or (min(numbers) <= 0 and max(numbers) > LOG_FROM):
        return [float(place) for place in range(len(values))], False
    return numbers, True


def main(options: Options) -> int:
    refuse_links(options.results)
    results, key, strategy = load_set(options.results), find_field(options.key), options.strategy
    points = sweep_points(results, strategy, key)
    if not points:
        return report_nothing(results, f"no ok run of {strategy} in {results.path} has {key} in its settings")
    print(table(key, points))
    written = write_sweep_csv(results, strategy, key, points)
    return save_study_chart(results, written, sweep_chart(results, strategy, key, points), f"sweep_{strategy}_{key}")


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(Options)))
