"""Draw strong and weak scaling over devices, from a set that ./bench study scaling made.

    python -m scripts.studies.scaling.chart --results results/latest --strategy ddp

scripts/studies/scaling/analysis.py defines strong and weak scaling and efficiency. Prints a table, writes scaling.csv
and charts/scaling_<strategy>.png and .svg. Exit code: 1 where nothing can be drawn, 2 for a mistake. Needs no torch.
"""

import pandas
import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from scripts.charts.figures import COLORS, footnote, make_figure
from scripts.results.formatting import format_setting, plural
from scripts.results.result_set import ResultSet, load_set
from scripts.results.set_text import describe_failures, describe_rows
from scripts.shared.programs import run_main_and_exit
from scripts.shared.strategy_list import BASELINE
from scripts.studies.scaling.analysis import ScalingPoint, scaling_points, scaling_rows, table, write_scaling_csv
from scripts.studies.study_chart import StudyChartOptions, annotate_point, draw_point, report_nothing, save_study_chart

LOG_FROM = 8  # most ranks over fewest from which axes are logarithmic
MARKERS = {"strong": "s", "weak": "D"}


def scaling_chart(results: ResultSet, strategy: str, modes: dict[str, list[ScalingPoint]]) -> Figure:
    """Throughput and efficiency over the number of devices, a column for each mode, with the ideal line."""
    all_points = [point for points in modes.values() for point in points]
    about = describe_rows(pandas.concat([point.group.ok_runs for point in all_points]).drop_duplicates("run_id"))
    title = f"{strategy}: scaling over devices"
    figure, panels, _ = make_figure(title, [results], [2.2, 1.7], 0, num_columns=len(modes), about=about)
    for column, (mode, points) in enumerate(modes.items()):
        _draw_mode(panels[column], panels[len(modes) + column], mode, points)
    notes = ["dashed: ideal; dots: runs; line: 95 % interval, cut where it leaves the chart."]
    threads = sorted({format_setting(value) for point in all_points for value in point.group.ok_runs.threads_per_rank})
    notes.append(f"threads a rank: {'/'.join(threads)}, at every number of devices.")
    if any(point.oversubscribed for point in all_points):
        notes.append("hollow: oversubscribed, more ranks than cores; says nothing about how the strategy scales.")
    if any(point.group.timed_throughput.low is None for point in all_points):
        notes.append("no interval: one round says nothing about the spread between runs.")
    footnote(figure, notes + [text for text in describe_failures(results) if text.startswith(strategy)])
    return figure


def _draw_mode(throughput: Axes, efficiency: Axes, mode: str, points: list[ScalingPoint]) -> None:
    first, logarithmic = points[0], points[-1].num_devices >= LOG_FROM * points[0].num_devices
    for axes in (throughput, efficiency):
        if logarithmic:
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks([point.num_devices for point in points], [f"{point.num_devices}" for point in points])
        axes.set_xlabel("devices")
        axes.margins(x=0.18)
        axes.grid(alpha=0.3)
    _draw_throughput(throughput, points, mode, logarithmic)
    _draw_efficiency(efficiency, points, mode)
    efficiency.set_ylabel(f"efficiency, % of {plural(first.num_devices, 'device')}")
    if mode == "strong":
        throughput.set_title(f"strong: global batch {first.global_batch} on every number of devices")
    else:
        throughput.set_title(f"weak: {first.global_batch / first.num_devices:g} images a device")


def _draw_throughput(axes: Axes, points: list[ScalingPoint], mode: str, logarithmic: bool) -> None:
    first, num_devices = points[0], [point.num_devices for point in points]
    ideal = [first.group.timed_throughput.value * number / first.num_devices for number in num_devices]
    values = [point.group.timed_throughput.value for point in points]
    axes.plot(num_devices, ideal, color="black", linestyle="--", linewidth=0.9)
    axes.plot(num_devices, values, color=COLORS[0], linewidth=1)
    for point in points:
        draw_point(axes, point.num_devices, point.group, MARKERS[mode], hollow=point.oversubscribed)
    if logarithmic:
        axes.set_yscale("log")
        axes.set_ylim(0.4 * min(values), 1.6 * max([*ideal, *values]))
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.12 * max([*ideal, *values]))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("images/s, both scales logarithmic" if logarithmic else "images/s")


def _draw_efficiency(axes: Axes, points: list[ScalingPoint], mode: str) -> None:
    axes.axhline(100, color="black", linestyle="--", linewidth=0.9)
    num_devices, values = [point.num_devices for point in points], [100 * point.efficiency for point in points]
    axes.plot(num_devices, values, color=COLORS[0], linewidth=1)
    for point, value in zip(points, values, strict=True):
        if point.efficiency_low is not None and point.efficiency_high is not None:
            bounds = [100 * point.efficiency_low, 100 * point.efficiency_high]
            axes.plot([point.num_devices] * 2, bounds, color="black", linewidth=1.2, marker="_")
        face = "white" if point.oversubscribed else COLORS[0]
        axes.plot(point.num_devices, value, marker=MARKERS[mode], markersize=6, color=COLORS[0], markerfacecolor=face)
        ratio = point.over_single
        of_baseline = "" if ratio is None else f"\n({100 * ratio.value / point.num_devices:.0f} % of {BASELINE})"
        if point is not points[0] or of_baseline:
            annotate_point(axes, point.num_devices, value, f"{value:.0f} %{of_baseline}", above=True)
    axes.set_ylim(0, 1.25 * max(100, *values))


def main(options: StudyChartOptions) -> int:
    results, strategy = load_set(options.results), options.strategy
    modes = scaling_points(results, strategy)
    if not modes:
        return report_nothing(results, f"{results.path} has no ok rows of {strategy} on two numbers of devices or more")
    rows = scaling_rows(strategy, modes)
    print(table(rows))
    written = write_scaling_csv(results, rows)
    return save_study_chart(results, written, scaling_chart(results, strategy, modes), f"scaling_{strategy}")


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(StudyChartOptions, description=__doc__)))
