"""Strong and weak scaling over devices: which runs of a set are the points, and scaling.csv.

Strong scaling: the configured global batch, divided by more and more devices. Weak scaling: on every number of devices,
as many images per device as the most devices have in strong scaling. Efficiency is the throughput per device over that
of the fewest devices. Beside it is the throughput over the baseline's: one process without a strategy, in the same
precision, on the batch that is divided (strong), or on the images of one device (weak). On a CPU a rank stands for a
device. `ranks` of scaling.csv counts devices, as `world_size` of runs.csv does. scripts/studies/scaling/chart.py draws
the points.
"""

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.common.files import write_text_atomically
from benchmarks.common.rows import table_text
from scripts.results.families import ratios_to_baseline
from scripts.results.formatting import format_interval, plural, text_table
from scripts.results.identity import compute_precision, key_without_derived
from scripts.results.intervals import RatioEstimate
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.shared.strategy_list import BASELINE
from scripts.studies.sweep.analysis import add_point, several_settings_error


@dataclasses.dataclass(frozen=True, eq=False)
class ScalingPoint:
    """One number of devices of one mode."""

    num_devices: int
    global_batch: int
    group: RunGroup
    efficiency: float
    """Throughput per device over that of the fewest devices of the mode; 1.0 is ideal."""
    efficiency_low: float | None
    """The 95 % interval; None for the fewest devices, and with one round."""
    efficiency_high: float | None
    over_single: RatioEstimate | None = None
    """Throughput over that of the baseline; None where the baseline was not run."""

    @property
    def oversubscribed(self) -> bool:
        return bool((self.group.ok_runs.oversubscribed == "yes").any())


@dataclasses.dataclass(frozen=True, order=True)
class RunSize:
    """The size of a run."""

    num_devices: int
    global_batch: int


def scaling_points(results: ResultSet, strategy: str) -> dict[str, list[ScalingPoint]]:
    """The points of the modes `strong` and `weak` by number of devices; a mode has two numbers of devices or more.

    The points are runs that are alike in all settings but ranks and batch. Raises UserError where the set has several
    such families of runs.
    """
    families: dict[str, dict[RunSize, RunGroup]] = {}
    for group in results.timed_groups_of(strategy):
        num_devices, global_batch = group.ok_runs.world_size.iloc[0], group.ok_runs.global_batch.iloc[0]
        if num_devices > 0 and global_batch > 0:
            family = families.setdefault(key_without_derived(group.identity, "ranks", "nodes", "global_batch"), {})
            add_point(results, family, RunSize(int(num_devices), int(global_batch)), group)
    scaled = [family for family in families.values() if len({size.num_devices for size in family}) > 1]
    if not scaled:
        return {}
    if len(scaled) > 1:
        raise several_settings_error(results, *(next(iter(family.values())) for family in scaled[:2]))
    (timed,) = scaled
    # `./bench study scaling` never plans a larger batch than the configured one, nor fewer images per device than the
    # most devices get of it.
    largest_batch = max(size.global_batch for size in timed)
    images_per_device = min(size.global_batch / size.num_devices for size in timed)
    strong = {size: timed[size] for size in sorted(timed) if size.global_batch == largest_batch}
    weak = {size: timed[size] for size in sorted(timed) if size.global_batch / size.num_devices == images_per_device}
    modes = {}
    for mode, groups, baseline_batch in (("strong", strong, largest_batch), ("weak", weak, images_per_device)):
        if len({size.num_devices for size in groups}) > 1:
            modes[mode] = _add_ratio_to_baseline(results, _points(groups), baseline_batch)
    return modes


def _add_ratio_to_baseline(results: ResultSet, points: list[ScalingPoint], baseline_batch: float) -> list[ScalingPoint]:
    """The points with their throughput over that of the baseline's runs with this batch, as many threads, and the same
    precision: a gain from another arithmetic is no scaling."""
    (threads,) = set(points[0].group.ok_runs.threads_per_rank)
    precision = compute_precision(points[0].group.identity)
    baselines = [
        group
        for group in results.timed_groups_of(BASELINE)
        if set(group.ok_runs.global_batch) == {baseline_batch}
        and set(group.ok_runs.threads_per_rank) == {threads}
        and compute_precision(group.identity) == precision
    ]
    if len(baselines) != 1 or baselines[0].strategy == points[0].group.strategy:
        return points
    (baseline,) = baselines
    samples = {group.label: group.sample for group in (baseline, *(point.group for point in points))}
    over_baseline = ratios_to_baseline(baseline.label, samples)
    return [dataclasses.replace(point, over_single=over_baseline[point.group.label]) for point in points]


def _points(groups: dict[RunSize, RunGroup]) -> list[ScalingPoint]:
    """The points of a mode, by number of devices. The intervals of their efficiencies are simultaneous."""
    first_size, first = next(iter(groups.items()))
    over_first = ratios_to_baseline(first.label, {group.label: group.sample for group in groups.values()})
    return [_point(size, group, first_size, over_first.get(group.label)) for size, group in groups.items()]


def _point(size: RunSize, group: RunGroup, first_size: RunSize, over_first: RatioEstimate | None) -> ScalingPoint:
    if over_first is None:
        return ScalingPoint(size.num_devices, size.global_batch, group, 1.0, None, None)
    scale = first_size.num_devices / size.num_devices
    low, high = (None if end is None else end * scale for end in (over_first.low, over_first.high))
    return ScalingPoint(size.num_devices, size.global_batch, group, over_first.value * scale, low, high)


def scaling_rows(strategy: str, modes: dict[str, list[ScalingPoint]]) -> list[dict[str, Any]]:
    """The points as rows of scaling.csv."""
    return [_row(strategy, mode, point) for mode, points in modes.items() for point in points]


def _row(strategy: str, mode: str, point: ScalingPoint) -> dict[str, Any]:
    throughput, ratio = point.group.timed_throughput, point.over_single
    ends = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    over_single, over_single_low, over_single_high = (None if end is None else end / point.num_devices for end in ends)
    return {
        "strategy": strategy,
        "mode": mode,
        "ranks": point.num_devices,
        "global_batch": point.global_batch,
        "images_per_s": throughput.value,
        "ci_low": throughput.low,
        "ci_high": throughput.high,
        "efficiency": point.efficiency,
        "efficiency_ci_low": point.efficiency_low,
        "efficiency_ci_high": point.efficiency_high,
        "num_runs": throughput.num_runs,
        "oversubscribed": point.oversubscribed,
        "over_single": over_single,
        "over_single_ci_low": over_single_low,
        "over_single_ci_high": over_single_high,
    }


def write_scaling_csv(results: ResultSet, rows: list[dict[str, Any]]) -> Path:
    """Write the rows to scaling.csv of the set."""
    path = results.path / "scaling.csv"
    write_text_atomically(path, table_text([*rows[0]], rows))
    return path


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    of_throughput = ("mode", "devices", "batch", "images/s", "95 % interval", "efficiency", "95 % interval")
    lines = [(*of_throughput, "over single", "95 % interval", "n", "")]
    for row in rows:
        throughput = format_interval(row["ci_low"], row["ci_high"], "{:,.1f}".format)
        efficiency = format_interval(row["efficiency_ci_low"], row["efficiency_ci_high"], "{:,.2f}".format)
        lines.append(
            (
                row["mode"],
                str(row["ranks"]),
                str(row["global_batch"]),
                f"{row['images_per_s']:,.1f}",
                throughput,
                f"{row['efficiency']:.2f}",
                efficiency,
                "" if row["over_single"] is None else f"{row['over_single']:.2f}",
                format_interval(row["over_single_ci_low"], row["over_single_ci_high"], "{:,.2f}".format),
                plural(row["num_runs"], "run"),
                "oversubscribed" if row["oversubscribed"] else "",
            )
        )
    return text_table(lines, left_aligned=())
