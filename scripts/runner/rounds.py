"""How many rounds a suite runs, after one run that warms the machine: REPEATS, and with UNTIL or BUDGET more.

UNTIL=5% adds rounds until the simultaneous intervals of all strategies over the baseline reach no further than 5 %
(stopping_rule.py). BUDGET=20m adds no round that would not fit; without UNTIL, every round that fits.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from scripts.runner.make_variables import MakeVariables
from scripts.runner.run_plan import Run, last_statuses
from scripts.sets.settings import settings_hash
from scripts.shared.nodes import ranks_and_nodes
from scripts.shared.options_as_typed import option_as_typed

if TYPE_CHECKING:
    from scripts.stats.families import ThroughputSample

MAX_ROUNDS = 40  # of UNTIL without BUDGET; as far as the simulations of its coverage go


def open_ended(variables: MakeVariables) -> bool:
    """Whether more rounds than REPEATS may follow."""
    return variables.until is not None or variables.budget_s is not None


def num_planned_rounds(variables: MakeVariables, of_round: Callable[[int], list[Run]]) -> int:
    """REPEATS, or the last round that has a row, where that is more: it is finished before another is added."""
    if not open_ended(variables) or variables.results is None or not (variables.results / "runs.csv").exists():
        return variables.repeats
    requested = {run.requested_hash for run in of_round(1)}
    recorded = [round_number for name, round_number in last_statuses(variables.results) if name in requested]
    return max([variables.repeats, *recorded])


def check_rounds(runs: Sequence[Run], variables: MakeVariables) -> None:
    """Raises UserError for SEEDS, UNTIL or BUDGET that no number of rounds can fulfil, and for a set that torchrun's
    nodes cannot continue."""
    if variables.num_seeds > variables.repeats:
        needs = f"{option_as_typed('SEEDS', variables.num_seeds)} needs a round for each seed"
        repeats = option_as_typed("REPEATS", variables.num_seeds)
        raise UserError(f"{needs}; give {repeats} or more, not {variables.repeats}")
    by_torchrun = ranks_and_nodes(1)[1] > 1 and bool(machine.number_from_env("NNODES", "a number of nodes"))
    if by_torchrun and variables.results is not None and (variables.results / "runs.csv").exists():
        raise UserError(
            f"{variables.results} has runs, and with NNODES no set can be continued: the first node alone has rows, so "
            f"that nodes would not agree on what is left; give each node a new {option_as_typed('RESULTS', '')}"
        )
    if not open_ended(variables):
        return
    name = option_as_typed("UNTIL" if variables.until is not None else "BUDGET")
    if by_torchrun:
        raise UserError(
            f"{name} is for one machine or Slurm: nodes of torchrun have to agree; give {option_as_typed('REPEATS')}"
        )
    if variables.until is not None and len({run.key for run in runs if run.round == 1}) < 2:
        two = "is the width of ratios, so that it needs two strategies or more"
        raise UserError(f"{name} {two}; {option_as_typed('BUDGET')} goes with one")


def describe_end(variables: MakeVariables) -> str:
    """When the rounds end; '' where that is after REPEATS."""
    ends = []
    if variables.until is not None:
        ends.append(f"the family-wise half-width is {format_percent(variables.until)} or less")
    if variables.budget_s is not None:
        ends.append(f"another round does not fit in {variables.budget_s:g} s")
    elif variables.until is not None:
        ends.append(f"there are {MAX_ROUNDS} rounds")
    return f"then more such rounds until {', or '.join(ends)}" if ends else ""


def generate_rounds(
    left: Sequence[Run], of_round: Callable[[int], list[Run]], variables: MakeVariables, results: Path
) -> Iterator[list[Run]]:
    """Round 0, which warms the machine, then the runs that are left, then added rounds. left: of the planned rounds.
    of_round: all runs of a round. Prints why no more rounds are added."""
    began, round_s = time.monotonic(), _longest_round_s(of_round(1), results)
    num_planned, needs_warm_up = num_planned_rounds(variables, of_round), not is_only_run(left, variables)
    planned = ([*runs] for _, runs in itertools.groupby(left, lambda run: run.round))
    added = (of_round(round_number) for round_number in itertools.count(num_planned + 1))
    for runs in itertools.chain(planned, added if open_ended(variables) else ()):
        # what is left of a planned round is run in any case
        if runs[0].round > num_planned and _is_finished(runs, variables, results, began, round_s):
            return
        if needs_warm_up:
            yield from _warm_up(runs, results)
            needs_warm_up = False
        round_began = time.monotonic()
        yield runs
        round_s = max(round_s, time.monotonic() - round_began)  # charts are drawn in it, too


def is_only_run(left: Sequence[Run], variables: MakeVariables) -> bool:
    """Whether a new set gets one run only, which needs no warm-up."""
    fresh = variables.results is None or not (variables.results / "runs.csv").exists()
    return len(left) == 1 and fresh and not open_ended(variables)


def warm_up_runs(left: Sequence[Run]) -> list[Run]:
    """The timed parts of these runs as round 0. One is enough: the next is started only where the one before was
    skipped."""
    started = [run for run in {run.key: run for run in left}.values() if not run.variables.get("SKIP")]
    return [dataclasses.replace(run.timed_part(), round=0, position=0) for run in started]


def _warm_up(left: Sequence[Run], results: Path) -> Iterator[list[Run]]:
    for run in warm_up_runs(left):
        yield [run]
        rows = read_table(results, "runs")
        warm_ups = rows[(rows.repeat == 0) & (rows.strategy == run.strategy)]
        if warm_ups.empty or not warm_ups.iloc[-1].reason.startswith("skipped"):  # empty: another node has its row
            return


def _longest_round_s(runs: Sequence[Run], results: Path) -> float:
    """Seconds of the longest recorded round of these runs; 0 without one."""
    requested = {run.requested_hash for run in runs}
    settings = read_table(results, "settings")
    rows = read_table(results, "runs")
    rows = rows[rows.settings.isin(settings[settings.asked_hash.isin(requested)].settings)]
    return 0.0 if rows.empty else float(rows.groupby("repeat").wall_s.sum().max())


def _is_finished(runs: Sequence[Run], variables: MakeVariables, results: Path, began: float, round_s: float) -> bool:
    """Whether no more rounds are added; prints why. runs: the next round."""
    from scripts.stats.stopping_rule import precise_enough, widest_half_width  # scipy: more than all other imports

    done, until = runs[0].round - 1, option_as_typed("UNTIL", format_percent(variables.until or 0))
    samples, baselines = timed_samples(runs, results)
    width = widest_half_width(samples, baselines) if len(samples) > 1 else None
    known = "no half-width is known" if width is None else f"the family-wise half-width is {format_percent(width)}"
    known += f" after {done} rounds"
    left_s = math.inf if variables.budget_s is None else variables.budget_s - (time.monotonic() - began)
    why = ""
    if variables.until is not None and len(samples) > 1 and precise_enough(samples, baselines, variables.until):
        print(f"{until} is reached: {known}")
        return True
    if not any(done in each.round_numbers for each in samples.values()):
        why = f"no run of round {done} was timed"
    elif round_s > left_s:
        budget = option_as_typed("BUDGET", f"{variables.budget_s:g}s")
        why = f"{budget}: another round, of about {round_s:.0f} s, does not fit"
    elif variables.until is not None and len(samples) < 2:
        why = "only one strategy has a timed run"
    elif variables.until is not None and variables.budget_s is None and done >= MAX_ROUNDS:
        why = f"{MAX_ROUNDS} rounds are the most without {option_as_typed('BUDGET')}"
    if variables.until is not None:
        print(
            f"{until} is not reached: {known}{estimate_rounds(width, variables.until, done)}"
            + (f"; {why}" if why else "")
        )
    elif why:
        print(f"{why}; {done} rounds")
    return bool(why)


def estimate_rounds(width: float | None, until: float, done: int) -> str:
    """Intervals narrow with the square root of the number of rounds."""
    if width is None:
        return ""
    about = math.ceil(done * (math.log1p(width) / math.log1p(until)) ** 2)
    return f", and would be after about {max(about, done + 1)}"


def timed_samples(runs: Sequence[Run], results: Path) -> "tuple[dict[str, ThroughputSample], dict[str, str]]":
    """The timed runs of the plan's groups, by label, and the label of each one's baseline. Without a baseline: all
    groups."""
    from scripts.sets.result_set import load_set  # pandas

    requested, found = {run.requested_hash for run in runs}, load_set(results)
    groups = [group for group in found.timed_groups if settings_hash(group.identity.requested) in requested]
    labels = {group.label for group in groups}
    baselines = {of: to for of, to in found.baseline_label_of.items() if {of, to} <= labels}
    compared = {*baselines, *baselines.values()} or labels
    return {group.label: group.sample for group in groups if group.label in compared}, baselines


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"
