"""How many rounds: REPEATS, and with UNTIL or BUDGET as many more as these say; before several a run that warms up.

    for runs in rounds(left, more_of, given, results): ...

UNTIL=5% adds rounds until the simultaneous intervals of all strategies over the baseline reach no further
than 5 % (power.enough, whose coverage the simulations count). BUDGET=20m ends it where another whole round does not
fit; alone, it adds rounds as long as one does.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.config.settings import settings_hash
from benchmarks.common.store.results import read_table
from benchmarks.common.system import machine
from benchmarks.common.system.errors import UserError
from scripts.runner.round_order import timed_part
from scripts.runner.run_plan import Given, Run, last_statuses
from scripts.sets.power import precise_enough, widest_half_width
from scripts.sets.result_set import load_set
from scripts.stats.families import Sample

MOST_ROUNDS = 40  # of UNTIL without BUDGET; as far as the simulations of its coverage go


def open_ended(given: Given) -> bool:
    """Whether REPEATS is the least only."""
    return given.until is not None or given.budget_s is not None


def least(given: Given, of_round: Callable[[int], list[Run]]) -> int:
    """REPEATS, or the last round that RESULTS has a row of, which is finished before another is added."""
    if not open_ended(given) or given.results is None or not (given.results / "runs.csv").exists():
        return given.repeats
    asked = {run.key[0] for run in of_round(1)}
    return max([given.repeats, *(number for name, number in last_statuses(given.results) if name in asked)])


def check(runs: Sequence[Run], given: Given) -> None:
    """Refuse what no rounds can do. Raises UserError. runs: of the first rounds."""
    if given.num_seeds > given.repeats:
        needs = f"SEEDS={given.num_seeds} needs a round for each seed"
        raise UserError(f"{needs}; give REPEATS={given.num_seeds} or more, not {given.repeats}")
    if not open_ended(given):
        return
    name = "UNTIL" if given.until is not None else "BUDGET"
    if machine.ranks_and_nodes(1)[1] > 1 and machine.number_from_env("NNODES", "a number of nodes"):
        raise UserError(f"{name} is for one machine or Slurm: nodes of torchrun have to agree; give REPEATS")
    if given.until is not None and len({run.key for run in runs if run.round == 1}) < 2:
        raise UserError("UNTIL is the width of ratios, so that it needs two strategies or more; BUDGET goes with one")


def in_words(given: Given) -> str:
    """What ends the rounds, for PLAN=yes; '' where it is REPEATS."""
    ends = []
    if given.until is not None:
        ends.append(f"the family-wise half-width is {percent(given.until)} or less")
    if given.budget_s is not None:
        ends.append(f"another round does not fit in {given.budget_s:g} s")
    elif given.until is not None:
        ends.append(f"there are {MOST_ROUNDS} rounds")
    return f"then more such rounds until {', or '.join(ends)}" if ends else ""


def rounds(
    left: Sequence[Run], of_round: Callable[[int], list[Run]], given: Given, results: Path
) -> Iterator[list[Run]]:
    """Rounds, each when its turn has come: 0, to warm up, then what is left of the first, then those that are added.

    left: of rounds 1 to `least`. of_round: all runs of a round. Says on stdout what ended them, where that is not
    REPEATS.
    """
    began, round_s = time.monotonic(), _longest_round_s(of_round(1), results)
    begun = ([*runs] for _, runs in itertools.groupby(left, lambda run: run.round))
    begun_rounds, warm = least(given, of_round), stands_alone(left, given)
    added = (of_round(number) for number in itertools.count(begun_rounds + 1))
    for runs in itertools.chain(begun, added if open_ended(given) else ()):
        # what is left of a round that was begun is run in any case
        if runs[0].round > begun_rounds and _ended(runs, given, results, began, round_s):
            return
        if not warm:
            yield from _warming(runs, results)
            warm = True
        started = time.monotonic()
        yield runs
        round_s = max(round_s, time.monotonic() - started)  # charts are drawn in it, too


def stands_alone(left: Sequence[Run], given: Given) -> bool:
    """Whether there is one run only, in a new set, so that no other had a warmer machine."""
    fresh = given.results is None or not (given.results / "runs.csv").exists()
    return len(left) == 1 and fresh and not open_ended(given)


def warm_ups(left: Sequence[Run]) -> list[Run]:
    """What may warm the machine before these runs of a round: the timed part of each, in round 0, which counts nowhere.

    One is enough; the next is for where that was skipped.
    """
    return [_warm_up(run) for run in {run.key: run for run in left}.values() if not run.variables.get("SKIP")]


def _warm_up(run: Run) -> Run:
    config = timed_part(run.config, run.asked["fingerprint"], run.asked["ranks"])
    return dataclasses.replace(run, round=0, position=0, config=config, asked=run.asked | dataclasses.asdict(config))


def _warming(left: Sequence[Run], results: Path) -> Iterator[list[Run]]:
    for run in warm_ups(left):
        yield [run]
        rows = read_table(results, "runs")
        own = rows[(rows.repeat == 0) & (rows.strategy == run.strategy)]
        if own.empty or not own.iloc[-1].reason.startswith("skipped"):  # empty: another node has its row
            return


def _longest_round_s(runs: Sequence[Run], results: Path) -> float:
    """Seconds of the longest round of such runs that the set has; 0 without one."""
    rows, settings, asked = read_table(results, "runs"), read_table(results, "settings"), {run.key[0] for run in runs}
    rows = rows[rows.settings.isin(settings[settings.asked_hash.isin(asked)].settings)]
    return 0.0 if rows.empty else float(rows.groupby("repeat").wall_s.sum().max())


def _ended(runs: Sequence[Run], given: Given, results: Path, began: float, round_s: float) -> bool:
    """Whether the round of these runs is not added, which is said then."""
    done, until = runs[0].round - 1, f"UNTIL={percent(given.until or 0)}"
    samples, baselines = samples_of(runs, results)
    width = widest_half_width(samples, baselines) if len(samples) > 1 else None
    known = "no half-width is known" if width is None else f"the family-wise half-width is {percent(width)}"
    known += f" after {done} rounds"
    left_s = math.inf if given.budget_s is None else given.budget_s - (time.monotonic() - began)
    why = ""
    if given.until is not None and len(samples) > 1 and precise_enough(samples, baselines, given.until):
        print(f"{until} is reached: {known}")
        return True
    if not any(done in each.rounds for each in samples.values()):
        why = f"no run of round {done} was timed"
    elif round_s > left_s:
        why = f"BUDGET={given.budget_s:g}s: another round, of about {round_s:.0f} s, does not fit"
    elif given.until is not None and len(samples) < 2:
        why = "only one strategy has a timed run"
    elif given.until is not None and given.budget_s is None and done >= MOST_ROUNDS:
        why = f"{MOST_ROUNDS} rounds are the most without BUDGET"
    if given.until is not None:
        print(f"{until} is not reached: {known}{needs(width, given.until, done)}" + (f"; {why}" if why else ""))
    elif why:
        print(f"{why}; {done} rounds")
    return bool(why)


def needs(width: float | None, until: float, done: int) -> str:
    """A guess at the rounds that UNTIL takes: intervals narrow with the root of their number."""
    if width is None:
        return ""
    about = math.ceil(done * (math.log1p(width) / math.log1p(until)) ** 2)
    return f", and would be after about {max(about, done + 1)}"


def samples_of(runs: Sequence[Run], results: Path) -> tuple[dict[str, Sample], dict[str, str]]:
    """The timed runs of the plan's groups in the set, by label, and the label of each one's baseline.

    Where there are baselines, of what is compared with one; all groups where there are none.
    """
    asked, found = {run.key[0] for run in runs}, load_set(results)
    groups = [group for group in found.groups if group.samples and settings_hash(group.identity.requested) in asked]
    labels = {group.label for group in groups}
    baselines = {of: to for of, to in found.baselines.items() if {of, to} <= labels}
    compared = {*baselines, *baselines.values()} or labels
    return {group.label: group.sample for group in groups if group.label in compared}, baselines


def percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"
