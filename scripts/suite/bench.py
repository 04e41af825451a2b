"""Runs a suite: all strategies, one option with several values, or one strategy on several numbers of ranks.

    python -m scripts.suite.bench all          # make bench-all, make bench-<strategy>
    python -m scripts.suite.bench sweep        # make sweep
    python -m scripts.suite.bench scaling      # make scaling

What they run is said by Make's variables (`make help`). PLAN=yes prints the runs and starts none. Exit code: 0 when
every run is ok or skipped, 1 otherwise, 2 for a mistake found before the first run, 129, 130 or 143 after a signal.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro

from benchmarks.common.config import find_key
from benchmarks.common.errors import UserError
from scripts.suite import plan, preflight, schedule


def main(kind: Literal["all", "sweep", "scaling"] = "all", /) -> int:
    given = plan.read_variables()
    preflight.check_rendezvous()
    if kind == "sweep":
        runs = plan.sweep(given)
        report = ["scripts.report.sweep", "--strategy", runs[0].strategy, "--key", find_key(given.key)]
    elif kind == "scaling":
        runs = plan.scaling(given)
        report = ["scripts.report.scaling", "--strategy", runs[0].strategy]
    else:
        runs, report = plan.bench(given), ["scripts.report.plot"]
    left = plan.fitted(plan.left_to_do(runs, given.results, given.retry))
    if os.environ.get("PLAN") == "yes":
        print(plan_text(left, runs, given.results))
        return 0
    return schedule.suite(left, preflight.open_set(given.results), report)


def plan_text(left: Sequence[plan.Run], runs: Sequence[plan.Run], results: Path | None) -> str:
    """The runs that are left to do, a line each: round, strategy, and what differs between the runs."""
    differing = [
        name for name in runs[0].asked if name != "strategy" and len({str(run.asked[name]) for run in runs}) > 1
    ]
    lines = [f"{len(left)} of {len(runs)} runs, in {results or 'a new set'}; none is started"]
    for run in left:
        own = ", ".join(f"{name} {run.asked[name]}" for name in differing)
        lines.append(f"  round {run.round}  {run.strategy:<18}  {own}".rstrip())
        if run.variables["SKIP"]:
            lines[-1] += f"  skipped: {run.variables['SKIP']}"
    same = ("ranks", "threads_per_rank", "arch", "global_batch", "data")
    lines.append("all: " + ", ".join(f"{name} {runs[0].asked[name]}" for name in same if name not in differing))
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(tyro.cli(main, description=__doc__))
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:  # such as a full disk
        print(f"error: {error.filename or 'the suite'}: {error.strerror}; choose another RESULTS=", file=sys.stderr)
    sys.exit(2)
