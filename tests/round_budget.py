"""Many short runs or few long ones: the half-width of a ratio for 15 minutes, from a published set's variances.

PYTHONPATH=. .venv/bin/python tests/round_budget.py [minutes, default 15]
"""

import math
import sys
from pathlib import Path

import numpy

from scripts.sets.result_set import ResultSet, load_set
from scripts.stats.intervals import sidak_critical_value
from scripts.studies.power import rounds_needed

PUBLISHED_SET = Path(__file__).parents[1] / "results" / "published" / "cpu2-epyc_torch2.15_202611b"
BUDGET_ROUNDS = (3, 4, 5, 6, 8, 10, 12, 15, 20)


def budget_rows(results: ResultSet, budget_s: float) -> tuple[float, list[tuple[int, int, float]]]:
    """What a run takes without its windows, in seconds; and (rounds, windows a run, half-width as a fraction) of what
    fits into budget_s.

    The half-width is of a ratio, of the mean pair with a baseline. The variance of a round's log ratio is the one
    between runs, and that of windows over their number in a run.
    """
    groups = {group.label: group for group in results.compared_groups}
    spreads = rounds_needed.ratio_spreads(
        {name: group.sample for name, group in groups.items()}, [*results.baseline_label_of.items()]
    )
    logs = {name: [numpy.log(run[:, 0] / run[:, 1]) for run in group.windows_of_runs] for name, group in groups.items()}
    of_windows = {name: numpy.mean([each.var(ddof=1) for each in runs]) for name, runs in logs.items()}
    within = numpy.mean([of_windows[of] + of_windows[to] for of, to in spreads])
    num_windows = numpy.mean([len(run) for group in groups.values() for run in group.windows_of_runs])
    between = max(0.0, numpy.mean(numpy.square([*spreads.values()])) - within / num_windows)
    timed_s = numpy.mean([run[:, 1].sum() for group in groups.values() for run in group.windows_of_runs])
    fixed_s = numpy.mean([group.ok_runs.wall_s.mean() for group in groups.values()]) - timed_s
    rows = []
    for rounds in BUDGET_ROUNDS:
        windows = (budget_s / rounds / 2 - fixed_s) / (timed_s / num_windows)
        if windows >= 1:
            sd = math.sqrt(between + within / windows)
            half = math.expm1(sd * sidak_critical_value(1, rounds - 1) / math.sqrt(rounds))
            rows.append((rounds, round(windows), half))
    return float(fixed_s), rows


def budget_lines(results: ResultSet, budget_s: float) -> list[str]:
    """The same as text."""
    fixed_s, rows = budget_rows(results, budget_s)
    return [
        f"{budget_s / 60:g} minutes of two strategies; a run takes {fixed_s:.0f} s, and a window more",
        *(f"{rounds:2} rounds of {windows:3} windows: half-width {100 * half:.1f} %" for rounds, windows, half in rows),
    ]


if __name__ == "__main__":
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 15
    print("\n".join(budget_lines(load_set(PUBLISHED_SET), 60 * minutes)))
