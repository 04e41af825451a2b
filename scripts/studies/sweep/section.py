"""The sweeps in the report: a chart of each, and the command that measures it again."""

import functools

from matplotlib.figure import Figure

from scripts.report.study_sections import StudySection, StudySets
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.studies.measured_csv import read_whole_rows
from scripts.studies.study_chart import points_or_warning
from scripts.studies.sweep.analysis import FOLDERS, sweep_points
from scripts.studies.sweep.chart import sweep_chart


def sweeps(results: ResultSet) -> dict[tuple[str, str], dict[str, RunGroup]]:
    """The points of every sweep that sweep.csv lists, by strategy and key."""
    rows = read_whole_rows(results.path / "sweep.csv")
    names = dict.fromkeys((row.get("strategy", ""), row.get("key", "")) for row in rows)
    found = {
        (strategy, key): points_or_warning(functools.partial(sweep_points, results, strategy, key))
        for strategy, key in names
    }
    return {name: points for name, points in found.items() if points and len(points) > 1}


def figures(sets: StudySets) -> dict[str, Figure]:
    return {
        f"sweep_{strategy}_{key}": sweep_chart(results, strategy, key, points)
        for results in sets.all_of(*FOLDERS)
        for (strategy, key), points in sweeps(results).items()
    }


def families(sets: StudySets) -> int:
    return sum(len(sweeps(results)) for results in sets.all_of(*FOLDERS))


SECTION = StudySection(order=20, nested_folders=FOLDERS, figures=figures, families=families)
