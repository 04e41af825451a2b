"""One option of one strategy at several values: which runs of a set are the points, and the lines of sweep.csv.

    from scripts.studies.sweep.analysis import sweep_points

scripts/studies/sweep/chart.py draws them.
"""

import csv
import io
from pathlib import Path

from benchmarks.common.store.results import format_cell, lock_tables, write_text_atomically
from benchmarks.common.system.errors import UserError
from scripts.sets.identity import key_without_derived
from scripts.sets.result_set import Group, ResultSet
from scripts.sets.safe_names import read_rows
from scripts.stats.families import ratios_to_baseline
from scripts.stats.formatting import format_interval, format_setting, plural, text_table

COLUMNS = ("strategy", "key", "value", "images_per_s", "ci_low", "ci_high", "num_runs")


def sweep_points(results: ResultSet, strategy: str, key: str) -> dict[str, Group]:
    """The timed runs of each value, in the order of the values: those that are alike in all but `key` and what comes
    of it, and of several such families the one with most values. Raises UserError where two have as many."""
    families: dict[str, dict[str, Group]] = {}
    for group in results.timed(strategy):
        if key in group.settings:
            family = families.setdefault(key_without_derived(group.identity, key), {})
            add_point(results, family, format_setting(group.settings[key]), group)
    points = max(families.values(), key=len, default={})
    rivals = [family for family in families.values() if len(family) == len(points)]
    if len(rivals) > 1:
        raise several_settings(results, *(next(iter(family.values())) for family in rivals[:2]))
    return dict(sorted(points.items(), key=lambda item: (number(item[0]) is None, number(item[0]) or 0.0)))


def add_point(results: ResultSet, points: dict, place: object, group: Group) -> None:
    """Add a group to the points of a curve. Raises UserError where another one stands at that place."""
    if points.setdefault(place, group) is not group:
        raise several_settings(results, points[place], group)


def several_settings(results: ResultSet, first: Group, second: Group) -> UserError:
    """Why two groups cannot be on one curve, nor one of them be chosen."""
    return UserError(
        f"{results.path} has such runs in several settings: {first.label}, and {second.label}; measure into a set of "
        "its own: RESULTS=results/new"
    )


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def write_sweep_csv(results: ResultSet, strategy: str, key: str, points: dict[str, Group]) -> Path:
    """The points as lines of sweep.csv, beside those of other sweeps."""
    path = results.path / "sweep.csv"
    rows = []
    for value, group in points.items():
        estimate = group.throughput
        numbers = (estimate.value, estimate.low, estimate.high, estimate.num_runs)
        cells = [format_cell(number(value) if number(value) is not None else value), *map(format_cell, numbers)]
        rows.append(dict(zip(COLUMNS, [format_cell(strategy), key, *cells], strict=True)))
    with lock_tables(results.path):
        others = []
        if path.exists():
            others = [each for each in read_rows(path) if (each.get("strategy"), each.get("key")) != (strategy, key)]
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(others + rows)
        write_text_atomically(path, out.getvalue())
    return path


def table(key: str, points: dict[str, Group]) -> str:
    """The points as text, each over the first; the intervals of these ratios hold together."""
    first_value = next(iter(points))
    over_first = ratios_to_baseline(first_value, {value: group.sample for value, group in points.items()})
    lines = [(key, "images/s", "95 % interval", "n", f"over {key} {first_value}", "")]
    for value, group in points.items():
        estimate, over = group.throughput, ("", "")
        if times := over_first.get(value):
            over = (
                f"{times.value:.2f} {format_interval(times.low, times.high, '{:.2f}'.format)}".rstrip(),
                times.verdict,
            )
        bounds = format_interval(estimate.low, estimate.high, "{:,.1f}".format)
        lines.append((value, f"{estimate.value:,.1f}", bounds, plural(estimate.num_runs, "run"), *over))
    return text_table(lines, left=())
