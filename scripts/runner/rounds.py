"""How many rounds a suite runs, after one run that warms the machine: --repeats, --until and --budget."""

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from scripts.results.settings import settings_hash
from scripts.runner.plan import Run, last_statuses, round_of
from scripts.runner.request import Request
from scripts.shared.nodes import ranks_and_nodes

if TYPE_CHECKING:
    from scripts.results.intervals import RatioEstimate
    from scripts.results.run_group import RunGroup

MAX_ROUNDS = 40  # of --until without --budget; as far as the simulations of its coverage go


def open_ended(request: Request) -> bool:
    return request.until is not None or request.budget_s is not None


def planned_runs(runs: Sequence[Run], request: Request) -> list[Run]:
    """Of `repeats` rounds, or more where more have rows. runs: of a round."""
    most = request.repeats
    if open_ended(request) and request.results is not None:
        requested = {run.requested_hash for run in runs}
        most = max([most, *(number for name, number in last_statuses(request.results) if name in requested)])
    return [run for number in range(1, most + 1) for run in round_of(runs, number)]


def check_rounds(runs: Sequence[Run], request: Request) -> None:
    """Raises UserError for seeds, a width or a budget that no rounds can fulfil."""
    if request.num_seeds > request.repeats:
        raise UserError(
            f"--seeds {request.num_seeds} needs a round for each seed; give --repeats {request.num_seeds} or more, not "
            f"{request.repeats}"
        )
    by_torchrun = ranks_and_nodes(1)[1] > 1 and bool(machine.number_from_env("NNODES", "a number of nodes"))
    if by_torchrun and request.has_rows:
        raise UserError(
            f"{request.results} has runs, and with NNODES no set can be continued: the first node alone has rows, so "
            f"that nodes would not agree on what is left; give each node a new --results"
        )
    if by_torchrun and open_ended(request):
        raise UserError(
            "--until and --budget are for one machine or Slurm: nodes of torchrun have to agree; give --repeats"
        )
    if request.until is not None and len(runs) < 2:
        raise UserError("--until is the width of ratios: it needs two strategies or more; --budget goes with one")


def describe_end(request: Request) -> str:
    """'' where the planned rounds are all."""
    ends = []
    if request.until is not None:
        ends.append(f"the family-wise half-width is {format_percent(request.until)} or less")
    if request.budget_s is not None:
        ends.append(f"another round does not fit in {request.budget_s:g} s")
    elif request.until is not None:
        ends.append(f"there are {MAX_ROUNDS} rounds")
    return f"then more such rounds until {', or '.join(ends)}" if ends else ""


def generate_rounds(left: Sequence[Run], runs: Sequence[Run], request: Request, results: Path) -> Iterator[list[Run]]:
    """Round 0, what is left of planned_runs, then added rounds. Prints why no more are added. runs: of a round."""
    began, round_s = time.monotonic(), 0.0
    last_planned, needs_warm_up = planned_runs(runs, request)[-1].round, not is_only_run(left, request)
    planned = ([*of_round] for _, of_round in itertools.groupby(left, lambda run: run.round))
    added = (round_of(runs, number) for number in itertools.count(last_planned + 1))
    for number, of_round in enumerate(itertools.chain(planned, added if open_ended(request) else ())):
        if of_round[0].round > last_planned and _is_finished(of_round, request, results):
            return
        left_s = math.inf if request.budget_s is None else request.budget_s - (time.monotonic() - began)
        if number and round_s > left_s:  # the first round is run in any case
            print(f"--budget {request.budget_s:g}s: another round, of about {round_s:.0f} s, does not fit")
            return
        if needs_warm_up:
            yield from _warm_up(of_round, results)
            needs_warm_up = False
        round_began = time.monotonic()
        yield of_round
        round_s = max(round_s, time.monotonic() - round_began)  # charts are drawn in it, too


def is_only_run(left: Sequence[Run], request: Request) -> bool:
    """Whether a new set gets one run only, which needs no warm-up."""
    return len(left) == 1 and not request.has_rows and not open_ended(request)


def warm_up_runs(left: Sequence[Run]) -> list[Run]:
    """Of which the next starts only where one was skipped."""
    return [dataclasses.replace(run.timed_part(), round=0, position=0) for run in left if not run.skip]


def _warm_up(left: Sequence[Run], results: Path) -> Iterator[list[Run]]:
    for run in warm_up_runs(left):
        yield [run]
        rows = read_table(results, "runs")
        warm_ups = rows[(rows.repeat == 0) & (rows.strategy == run.strategy)]
        if warm_ups.empty or not warm_ups.iloc[-1].reason.startswith("skipped"):  # empty: another node has its row
            return


def _is_finished(runs: Sequence[Run], request: Request, results: Path) -> bool:
    """Prints why. runs: the next round."""
    from scripts.results.intervals import precise_enough, widest_half_width  # scipy

    done, until = runs[0].round - 1, request.until
    groups, ratios = timed_groups(runs, results)
    if not any(done in group.round_numbers for group in groups):
        print(f"no run of round {done} was timed")
        return True
    if until is None:
        return False
    width = widest_half_width(ratios)
    known = "no half-width is known" if width is None else f"the family-wise half-width is {format_percent(width)}"
    known += f" after {done} rounds"
    if precise_enough(ratios, until):
        print(f"--until {format_percent(until)} is reached: {known}")
        return True
    why = "only one strategy has a timed run" if len(groups) < 2 else ""
    if not why and request.budget_s is None and done >= MAX_ROUNDS:
        why = f"{MAX_ROUNDS} rounds are the most without --budget"
    print("; ".join(filter(None, [f"--until {format_percent(until)} is not reached: {known}", why])))
    return bool(why)


def timed_groups(runs: Sequence[Run], results: Path) -> "tuple[list[RunGroup], list[RatioEstimate]]":
    """The plan's groups, and the ratio of each over its baseline; without one, of all pairs."""
    from scripts.results.result_set import load_set  # pandas

    requested, found = {run.requested_hash for run in runs}, load_set(results)
    groups = [group for group in found.timed_groups if settings_hash(group.identity.requested) in requested]
    labels = {group.label for group in groups}
    pairs = {pair: ratio for pair, ratio in found.ratios.items() if labels.issuperset(pair)}
    over = [ratio for (of, to), ratio in pairs.items() if found.baseline_label_of.get(of) == to]
    return groups, over or [*pairs.values()]


def format_percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}%"
