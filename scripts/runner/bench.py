"""Runs a suite: all strategies, one option at several values, one strategy on several numbers of ranks, or its options.

    python -m scripts.runner.bench all          # make bench-all, make bench-<strategy>
    python -m scripts.runner.bench sweep        # make sweep
    python -m scripts.runner.bench scaling      # make scaling
    python -m scripts.runner.bench ablate       # make ablate

What they run is said by Make's variables (`make help`). PLAN=yes prints the runs and starts none. Exit code: 0 when
every run is ok or skipped, 1 otherwise, 2 for a mistake found before the first run, 129, 130, 131 or 143 by a signal.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Literal

import tyro

from benchmarks.common.config.config import find_field
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.output import ignore_output_errors
from scripts.runner import plan, preflight, rounds, schedule
from scripts.studies.ablation import plan as ablation_plan
from scripts.studies.scaling import plan as scaling_plan


def main(kind: Literal["all", "sweep", "scaling", "ablate"] = "all", /) -> int:
    given = plan.read_variables()
    preflight.check_rendezvous()
    made = {"all": plan.bench, "sweep": plan.sweep, "scaling": scaling_plan.scaling, "ablate": ablation_plan.ablation}[
        kind
    ]

    def of_round(number: int) -> list[plan.Run]:
        return plan.fitted([run for run in made(dataclasses.replace(given, repeats=number)) if run.round == number])

    num_rounds, a_round = rounds.least(given, of_round), len(of_round(1))
    if num_rounds * a_round > plan.MOST_RUNS:
        many = f"{num_rounds} rounds of {a_round} runs are more than {plan.MOST_RUNS} runs"
        raise UserError(f"{many}; lower REPEATS, or give BUDGET, which adds rounds as long as there is time")
    runs = made(dataclasses.replace(given, repeats=num_rounds))
    rounds.check(runs, given)
    preflight.check_reach([run.strategy for run in runs])
    strategy = "" if kind == "all" else preflight.only(given.strategy)  # not that of the first run: scaling has two
    report = {
        "all": ["scripts.charts.plot"],
        "sweep": ["scripts.studies.sweep.chart", "--strategy", strategy, "--key", given.key and find_field(given.key)],
        "scaling": ["scripts.studies.scaling.chart", "--strategy", strategy],
        "ablate": ["scripts.studies.ablation.chart", "--strategy", strategy],
    }[kind]
    left = plan.fitted(plan.left_to_do(runs, given.results, given.retry))
    if os.environ.get("PLAN") == "yes":
        print(plan_text(left, runs, given))
        return 0
    results = preflight.open_set(given.results)
    each = rounds.rounds(left, of_round, given, results)
    return schedule.suite(each, results, report, len(left), open_ended=rounds.open_ended(given))


def plan_text(left: Sequence[plan.Run], runs: Sequence[plan.Run], given: plan.Given) -> str:
    """The runs that are left to do in their order, a line each: round, strategy, and what differs between the runs."""
    differing = [
        name for name in runs[0].asked if name != "strategy" and len({str(run.asked[name]) for run in runs}) > 1
    ]
    lines = [f"{len(left)} of {len(runs)} runs, in {given.results or 'a new set'}; none is started"]
    if left and not rounds.stands_alone(left, given):
        warm = rounds.warm_ups([run for run in left if run.round == left[0].round])[:1]
        lines += [f"  warm-up  {run.strategy:<18}  its timed part only, not counted" for run in warm]
    for run in left:
        own = ", ".join(f"{name} {run.asked[name]}" for name in differing)
        lines.append(f"  round {run.round}  {run.strategy:<18}  {own}".rstrip())
        if run.variables["SKIP"]:
            lines[-1] += f"  skipped: {run.variables['SKIP']}"
    lines += [rounds.in_words(given)] if rounds.in_words(given) else []
    same = ("ranks", "threads_per_rank", "arch", "global_batch", "data")
    lines.append("all: " + ", ".join(f"{name} {runs[0].asked[name]}" for name in same if name not in differing))
    return "\n".join(lines)


if __name__ == "__main__":
    ignore_output_errors()
    try:
        sys.exit(tyro.cli(main, description=__doc__))
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:  # such as a full disk
        print(f"error: {error.filename or 'the suite'}: {error.strerror}; choose another RESULTS=", file=sys.stderr)
    sys.exit(2)
