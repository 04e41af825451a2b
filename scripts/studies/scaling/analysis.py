"""Strong and weak scaling over ranks: which runs of a set are the points, and the lines of scaling.csv.

    from scripts.studies.scaling.analysis import scaling_points

Strong: the configured global batch, cut into more and more pieces. Weak: the images a rank that the most ranks
get, at every number of ranks. Efficiency is throughput a rank over that of the fewest ranks; beside it stands the same
over the baseline, one process without a strategy, on the batch that is divided (weak: on the images of one rank).
scripts/studies/scaling/chart.py draws them.
"""

import csv
import dataclasses
import io
from pathlib import Path

from benchmarks.common.store.results import format_cell, write_text_atomically
from scripts.sets.identity import key_without_derived
from scripts.sets.result_set import BASELINE, Group, ResultSet
from scripts.stats.families import ratios_to_baseline
from scripts.stats.formatting import format_interval, plural, text_table
from scripts.stats.intervals import RatioEstimate
from scripts.studies.sweep.analysis import add_point, several_settings

COLUMNS = (
    "strategy", "mode", "ranks", "global_batch", "images_per_s", "ci_low", "ci_high",
    "efficiency", "efficiency_ci_low", "efficiency_ci_high", "num_runs", "oversubscribed",
    "over_single", "over_single_ci_low", "over_single_ci_high",
)  # fmt: skip


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
    over_single: RatioEstimate | None = None
    """Throughput over that of the baseline; None where it was not run."""

    @property
    def oversubscribed(self) -> bool:
        return bool((self.group.ok.oversubscribed == "yes").any())


def scaling_points(results: ResultSet, strategy: str) -> dict[str, list[Point]]:
    """Points of the modes `strong` and `weak` that have two numbers of ranks or more, by ranks.

    They are alike in all but ranks and batch. Raises UserError where several such families of runs are.
    """
    families: dict[str, dict[tuple[int, int], Group]] = {}
    for group in results.timed(strategy):
        num_ranks, global_batch = group.ok.world_size.iloc[0], group.ok.global_batch.iloc[0]
        if num_ranks > 0 and global_batch > 0:
            alike = key_without_derived(group.identity, "ranks", "nodes", "global_batch")
            add_point(results, families.setdefault(alike, {}), (int(num_ranks), int(global_batch)), group)
    found = [family for family in families.values() if len({ranks for ranks, _ in family}) > 1]
    if not found:
        return {}
    if len(found) > 1:
        raise several_settings(results, *(next(iter(family.values())) for family in found[:2]))
    (timed,) = found
    # `make scaling` asks for no larger batch than the configured one, and for no fewer images a rank
    # than the most ranks get of it
    batch = max(batch for _, batch in timed)
    per_rank = min(size / ranks for ranks, size in timed)
    modes = {
        "strong": [shape for shape in sorted(timed) if shape[1] == batch],
        "weak": [shape for shape in sorted(timed) if shape[1] / shape[0] == per_rank],
    }
    found = {mode: _points({shape: timed[shape] for shape in shapes}) for mode, shapes in modes.items()}
    batches = {"strong": batch, "weak": per_rank}
    return {
        mode: _with_baseline(results, points, batches[mode])
        for mode, points in found.items()
        if len({point.num_ranks for point in points}) > 1
    }


def _with_baseline(results: ResultSet, points: list[Point], batch: float) -> list[Point]:
    """The points with their throughputs over that of the baseline's runs with this batch, and as many threads."""
    (threads,) = set(points[0].group.ok.threads_per_rank)
    alike = [
        group
        for group in results.timed(BASELINE)
        if set(group.ok.global_batch) == {batch} and set(group.ok.threads_per_rank) == {threads}
    ]
    if len(alike) != 1 or alike[0].strategy == points[0].group.strategy:
        return points
    over = ratios_to_baseline(
        alike[0].label, {group.label: group.sample for group in (*alike, *(p.group for p in points))}
    )
    return [dataclasses.replace(point, over_single=over[point.group.label]) for point in points]


def _points(timed: dict[tuple[int, int], Group]) -> list[Point]:
    """The points of a mode, by ranks; the intervals of their efficiencies hold together."""
    base_shape, base = next(iter(timed.items()))
    over_base = ratios_to_baseline(base.label, {group.label: group.sample for group in timed.values()})
    return [_point(shape, group, base_shape, over_base.get(group.label)) for shape, group in timed.items()]


def _point(shape: tuple[int, int], group: Group, base_shape: tuple[int, int], times: RatioEstimate | None) -> Point:
    if times is None:
        return Point(*shape, group, 1.0, None, None)
    scale = base_shape[0] / shape[0]
    low, high = (None if bound is None else bound * scale for bound in (times.low, times.high))
    return Point(*shape, group, times.value * scale, low, high)


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
            over = point.over_single
            bounds = (None, None, None) if over is None else (over.value, over.low, over.high)
            a_rank = [None if bound is None else bound / point.num_ranks for bound in bounds]
            rows.append(dict(zip(COLUMNS, (*values, *a_rank), strict=True)))
    return rows


def write_scaling_csv(results: ResultSet, rows: list[dict]) -> Path:
    """The rows as scaling.csv of the set."""
    out, path = io.StringIO(), results.path / "scaling.csv"
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: format_cell(value) for name, value in row.items()} for row in rows)
    write_text_atomically(path, out.getvalue())
    return path


def table(rows: list[dict]) -> str:
    """The rows as text."""
    lines = [("mode", "ranks", "batch", "images/s", "95 % interval", "efficiency", "95 % interval")]
    lines[0] += ("over single", "95 % interval", "n", "")
    for row in rows:
        speed = format_interval(row["ci_low"], row["ci_high"], "{:,.1f}".format)
        efficiency = format_interval(row["efficiency_ci_low"], row["efficiency_ci_high"], "{:,.2f}".format)
        lines.append(
            (
                row["mode"],
                str(row["ranks"]),
                str(row["global_batch"]),
                f"{row['images_per_s']:,.1f}",
                speed,
                f"{row['efficiency']:.2f}",
                efficiency,
                "" if row["over_single"] is None else f"{row['over_single']:.2f}",
                format_interval(row["over_single_ci_low"], row["over_single_ci_high"], "{:,.2f}".format),
                plural(row["num_runs"], "run"),
                "oversubscribed" if row["oversubscribed"] else "",
            )
        )
    return text_table(lines, left=())
