"""The scaling study in the report: a chart of each strategy, and the command that measures it again."""

import functools
import os
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.common import machine
from benchmarks.common.rows import read_table
from scripts.pages.study_sections import Measurement, StudyCommand, StudySection, StudySets
from scripts.sets.result_set import ResultSet
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


def commands(results: ResultSet) -> list[StudyCommand]:
    """One command a strategy, of a set that `./bench study scaling` made."""
    if not (results.path / "scaling.csv").exists():
        return []
    found = []
    for strategy, modes in scaled_strategies(results).items():
        num_devices = sorted({point.num_devices for points in modes.values() for point in points})
        ranks = [*map(str, num_devices)]
        found.append(StudyCommand("study scaling", strategy, {"--ranks": ranks}, replaced=("NPROC",)))
    return found


def missing(results: Path) -> list[Measurement]:
    """The study of STRATEGY, into a folder of the set, which runs only what that folder lacks."""
    ranks = ranks_to_scale_to(results)
    if not os.environ.get("STRATEGY") or len(ranks) < 2:
        return []
    variables = {"RANKS": " ".join(map(str, ranks)), "THREADS_PER_RANK": "", "RESULTS": str(results / "scaling")}
    return [Measurement(["launchers/all.sh", "scaling"], variables, num_ranks=max(ranks))]


def ranks_to_scale_to(results: Path) -> list[int]:
    """1, 2, 4 ... up to NPROC, the GPUs, or the cores, as far as the set's batch divides by them."""
    chosen = os.environ.get("NPROC") or machine.num_gpus()
    most = machine.num_ranks() if chosen else min(machine.num_cores(), MAX_RANKS_ON_CPU)
    batch = read_table(results, "runs").global_batch.max()
    powers = [2**exponent for exponent in range(most.bit_length())]
    return [ranks for ranks in powers if not batch % ranks > 0]


def families(sets: StudySets) -> int:
    """Of each curve: over its first point, and over one process where that was measured."""
    return sum(
        1 + any(point.over_single for point in points)
        for results in sets.all_of(*FOLDERS)
        for modes in scaled_strategies(results).values()
        for points in modes.values()
    )


SECTION = StudySection(
    order=10, nested_folders=FOLDERS, figures=figures, families=families, commands=commands, missing=missing
)
