"""Runs all strategies, or the runs of a study: a folder of scripts/studies whose plan.py has plan_runs(variables) and
chart_command(variables), the module that draws them and its flags.

    python -m scripts.runner.bench all          # ./bench run; launchers/all.sh
    python -m scripts.runner.bench sweep        # ./bench study sweep

Environment variables choose the runs. PLAN=yes starts none. Exit code: 0 when every run is ok or skipped; 1 otherwise,
and where nothing fits in memory; 2 for a mistake found before the first run; 128 + the signal.
"""

import dataclasses
import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.shared.forward_signals import end_on_signals

if __name__ == "__main__":
    end_on_signals()  # before the imports, which take seconds

import tyro

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.runner import preflight, rounds, run_plan, schedule
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.make_variables import MakeVariables, read_variables, with_images
from scripts.setup.first_minute import unused_device_line
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.stats.formatting import plural, printable
from scripts.strategies import strategy_list

STUDIES = ROOT / "scripts" / "studies"
WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which runs a command starts, and which program draws them."""

    plan_runs: Callable[[MakeVariables], list[run_plan.Run]]
    chart_command: Callable[[MakeVariables], list[str]]


def find_plan(name: str) -> Plan:
    """Raises UserError where there is no such study."""
    if name == "all":
        return Plan(run_plan.plan_strategies, lambda variables: ["scripts.charts.plot"])
    studies = sorted(path.parent.name for path in STUDIES.glob("*/plan.py"))
    if name not in studies:
        raise UserError(f"there is no study {name!r}; choose one of all, {', '.join(studies)}")
    study = importlib.import_module(f"scripts.studies.{name}.plan")
    return Plan(study.plan_runs, study.chart_command)


def main(name: str = "all", /) -> int:
    variables = with_images(read_variables())
    if not machine.num_gpus() and (line := unused_device_line()):
        print(line, file=sys.stderr)
    preflight.check_rendezvous()
    plan = find_plan(name)
    if name == "all":
        variables = with_fitting_batch(variables)

    def of_round(round_number: int) -> list[run_plan.Run]:
        runs = plan.plan_runs(dataclasses.replace(variables, repeats=round_number))
        return run_plan.skip_what_does_not_fit([run for run in runs if run.round == round_number])

    num_rounds = rounds.num_planned_rounds(variables, of_round)
    runs = plan.plan_runs(dataclasses.replace(variables, repeats=num_rounds))
    rounds.check_rounds(runs, variables)
    preflight.check_nodes_variables([run.strategy for run in runs])
    remaining = run_plan.remaining_runs(runs, variables.results, variables.retry)
    left = run_plan.skip_what_does_not_fit(remaining)
    if os.environ.get("PLAN") == "yes":
        print(plan_text(left, runs, variables))
        return 0
    results = preflight.open_result_set(variables.results)
    run_batches = rounds.generate_rounds(left, of_round, variables, results)
    return schedule.run_planned(
        run_batches,
        results,
        plan.chart_command(variables),
        len(left),
        planned=runs[0],
        open_ended=rounds.open_ended(variables),
        start_text=start_text(left, results, variables),
    )


def start_text(left: Sequence[run_plan.Run], results: Path, variables: MakeVariables) -> str:
    """What is printed before the first run."""
    end = rounds.describe_end(variables)
    if not left:
        return printable(f"{results}: every planned run has a row already{f'; {end}' if end else ''}")
    warm_up = "" if rounds.is_only_run(left, variables) else ", after a warm-up that does not count"
    num_rounds = len({run.round for run in left})
    names = "; ".join(dict.fromkeys(run.name for run in left))
    lines = [
        printable(f"{results}: {plural(len(left), 'run')} in {plural(num_rounds, 'round')}{warm_up}"),
        *textwrap.wrap(printable(names), WIDTH, initial_indent="  ", subsequent_indent="  "),
        *([end] if end else []),
    ]
    return "\n".join(lines)


def plan_text(left: Sequence[run_plan.Run], runs: Sequence[run_plan.Run], variables: MakeVariables) -> str:
    """The runs that are left, a line each: round, strategy, and what differs between the runs."""
    differing = [
        name for name in runs[0].requested if name != "strategy" and len({str(run.requested[name]) for run in runs}) > 1
    ]
    lines = [f"{len(left)} of {len(runs)} runs, in {variables.results or 'a new set'}; none is started"]
    if left and not rounds.is_only_run(left, variables):
        warm = rounds.warm_up_runs([run for run in left if run.round == left[0].round])[:1]
        lines += [f"  warm-up  {run.strategy:<18}  its timed part only, not counted" for run in warm]
    for run in left:
        differences = ", ".join(f"{name} {shown_setting(run, name)}" for name in differing)
        what = run.name if run.variant else f"{run.strategy:<18}  {differences}"
        lines.append(f"  round {run.round}  {what}".rstrip())
        if run.variables["SKIP"]:
            lines[-1] += f"  skipped: {run.variables['SKIP']}"
    if rounds.describe_end(variables):
        lines.append(rounds.describe_end(variables))
    batch = "global_batch" if runs[0].requested["global_batch"] else "batch_per_device"
    images = "loader" if all(run.requested["loader"] == "synthetic" for run in runs) else "data"
    same = ("ranks", "threads_per_rank", "arch", batch, images)
    lines.append("all: " + ", ".join(f"{name} {runs[0].requested[name]}" for name in same if name not in differing))
    return "\n".join(lines)


def shown_setting(run: run_plan.Run, name: str) -> object:
    """A requested setting; a mixed-precision strategy runs auto's choice where fp32 is requested."""
    requested = run.requested[name]
    if name == "precision" and requested == "fp32" and strategy_list.has_fact(run.strategy, "mixed_precision"):
        return "auto"
    return requested


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main, description=__doc__), errors=(UserError, ValueError), writes="the suite")
