"""One option of one strategy at several values: which runs of a set are the points of a sweep, and sweep.csv.

scripts/studies/sweep/chart.py draws them.
"""

import csv
import io
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import TypeVar

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.rows import format_cell, lock_tables
from scripts.results.families import ratios_to_baseline
from scripts.results.formatting import format_interval, format_setting, plural, text_table
from scripts.results.identity import key_without_derived
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.studies.measured_csv import read_rows

FOLDERS = ("scaling", "sweeps")  # of a set, in which the suite puts sweeps
SWEEP_COLUMNS = ("strategy", "key", "value", "images_per_s", "ci_low", "ci_high", "num_runs")

PointKey = TypeVar("PointKey", bound=Hashable)


def sweep_points(results: ResultSet, strategy: str, key: str) -> dict[str, RunGroup]:
    """The timed runs of each value of the configuration field `key`, in the order of the values.

    The points are runs that are alike in all settings but `key` and what follows from it. Of several such families of
    runs, the points are the one with most values. Raises UserError where two families have as many.
    """
    families: dict[str, dict[str, RunGroup]] = {}
    for group in results.timed_groups_of(strategy):
        if key in group.settings:
            family = families.setdefault(key_without_derived(group.identity, key), {})
            add_point(results, family, format_setting(group.settings[key]), group)
    points = max(families.values(), key=len, default={})
    largest = [family for family in families.values() if len(family) == len(points)]
    if len(largest) > 1:
        raise several_settings_error(results, *(next(iter(family.values())) for family in largest[:2]))
    return dict(sorted(points.items(), key=lambda item: _sort_key(item[0])))


def _sort_key(value: str) -> tuple[bool, float]:
    """Numbers in their order, then words in the order in which they came."""
    number = parse_number(value)
    return number is None, number or 0.0


def add_point(results: ResultSet, points: dict[PointKey, RunGroup], key: PointKey, group: RunGroup) -> None:
    """Add a group to the points of a curve. Raises UserError where another group has the same key."""
    if points.setdefault(key, group) is not group:
        raise several_settings_error(results, points[key], group)


def several_settings_error(results: ResultSet, first: RunGroup, second: RunGroup) -> UserError:
    """The error that two groups differ in other settings, so that one curve cannot have both."""
    return UserError(
        f"{results.path} has such runs in several settings: {first.label}, and {second.label}; measure into a set of "
        f"its own: --results results/new"
    )


def parse_number(text: str) -> float | None:
    """The number that the text is; None for other text."""
    try:
        return float(text)
    except ValueError:
        return None


def write_sweep_csv(results: ResultSet, strategy: str, key: str, points: Mapping[str, RunGroup]) -> Path:
    """Write the points to sweep.csv of the set. Rows of other sweeps stay."""
    path = results.path / "sweep.csv"
    rows = []
    for value, group in points.items():
        estimate = group.timed_throughput
        number = parse_number(value)
        measured = (estimate.value, estimate.low, estimate.high, estimate.num_runs)
        cells = (strategy, key, value if number is None else number, *measured)
        rows.append(dict(zip(SWEEP_COLUMNS, map(format_cell, cells), strict=True)))
    with lock_tables(results.path):
        others = []
        if path.exists():
            others = [row for row in read_rows(path) if (row.get("strategy"), row.get("key")) != (strategy, key)]
        out = io.StringIO()
        writer = csv.DictWriter(out, SWEEP_COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*others, *rows])
        write_text_atomically(path, out.getvalue())
    return path


def table(key: str, points: Mapping[str, RunGroup]) -> str:
    """The points as text, with ratios to the first point. The intervals of these ratios are simultaneous."""
    first_value = next(iter(points))
    over_first = ratios_to_baseline(first_value, {value: group.sample for value, group in points.items()})
    lines = [(key, "images/s", "95 % interval", "n", f"over {key} {first_value}", "")]
    for value, group in points.items():
        estimate, over = group.timed_throughput, ("", "")
        if ratio := over_first.get(value):
            over = ratio.text(), ratio.verdict
        bounds = format_interval(estimate.low, estimate.high, "{:,.1f}".format)
        lines.append((value, f"{estimate.value:,.1f}", bounds, plural(estimate.num_runs, "run"), *over))
    return text_table(lines, left_aligned=())
