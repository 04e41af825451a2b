"""The scaling study in the report: a chart of each strategy, and the command that measures it again."""

import functools

from matplotlib.figure import Figure

from scripts.report.study_sections import StudySection, StudySets
from scripts.results.result_set import ResultSet
from scripts.studies.scaling.analysis import ScalingPoint, scaling_points
from scripts.studies.scaling.chart import scaling_chart
from scripts.studies.study_chart import points_or_warning
from scripts.studies.sweep.analysis import FOLDERS

MAX_RANKS_ON_CPU = 8  # of a study that nobody chose: three points or more, and batches of some images


def scaled_strategies(results: ResultSet) -> dict[str, dict[str, list[ScalingPoint]]]:
    """Strong and weak scaling of every strategy that ran on several numbers of devices."""
    strategies = dict.fromkeys(group.strategy for group in results.groups)
    found = {name: points_or_warning(functools.partial(scaling_points, results, name)) for name in strategies}
    return {name: modes for name, modes in found.items() if modes}


def figures(sets: StudySets) -> dict[str, Figure]:
    return {
        f"scaling_{strategy}": scaling_chart(results, strategy, modes)
        for results in sets.all_of(*FOLDERS)
        for strategy, modes in scaled_strategies(results).items()
    }


def families(sets: StudySets) -> int:
    """Of each curve: over its first point, and over one process where that was measured."""
    return sum(
        1 + any(point.over_single for point in points)
        for results in sets.all_of(*FOLDERS)
        for modes in scaled_strategies(results).values()
        for points in modes.values()
    )


SECTION = StudySection(order=10, nested_folders=FOLDERS, figures=figures, families=families)
