"""The loop of a suite: starts the launchers one after the other, and draws the charts after each round."""

import contextlib
import dataclasses
import datetime
import functools
import os
import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from benchmarks.common.rows import WARM_UP, append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.results.formatting import format_duration, plural, printable
from scripts.runner import plan as planner
from scripts.runner import preflight, record, rounds
from scripts.runner.default_batch import with_fitting_batch
from scripts.runner.plan import Run
from scripts.runner.request import Request, with_images
from scripts.setup.first_minute import unused_device_line
from scripts.setup.libraries import build_missing, library_of
from scripts.shared import source_version
from scripts.shared.external import NAME_VARIABLE
from scripts.shared.forward_signals import SignalForwarder, forward_signals
from scripts.shared.repository import ROOT

WIDTH = 100
NOTHING_TIMED = (
    "failed: no run was timed; the column reason of runs.csv says why, and what would fit, such as a smaller batch: "
    "-- --batch-per-device 64"
)


@dataclasses.dataclass(frozen=True)
class Suite:
    """What plans the runs of a round, and the module that draws them."""

    plan_runs: Callable[[Request], list[Run]]
    draws: str = "scripts.charts.plot"


STRATEGIES = Suite(planner.plan_strategies)


def main(request: Request, suite: Suite = STRATEGIES) -> int:
    """Plan the runs of a request, and run what is left of them in its set. Returns 0 when every run is ok or skipped,
    else 1, or 128 + the signal. Raises UserError before the first run."""
    request = with_images(request)
    if not machine.num_gpus() and (line := unused_device_line()):
        print(line, file=sys.stderr)
    preflight.check_rendezvous()
    if suite is STRATEGIES:
        request = with_fitting_batch(request)
    runs = planner.skip_what_does_not_fit(planner.name_runs(suite.plan_runs(request)))
    rounds.check_rounds(runs, request)
    preflight.check_nodes_variables([run.strategy for run in runs])
    planned = rounds.planned_runs(runs, request)
    left = planner.remaining_runs(planned, request.results, request.retry)
    if request.plan:
        print(plan_text(left, planned, request))
        return 0
    results = preflight.open_result_set(request.results)
    with lock_result_set(results), forward_signals() as child_runner:
        link_latest(results)
        if line := source_version.warning_without_commit():
            print(f"warning: {line}", file=sys.stderr)
        print(start_text(left, results, request), flush=True)
        for strategy in dict.fromkeys(run.strategy for run in left if not run.skip):
            build_library(strategy, child_runner)  # so that no round is longer for it
        loop = Loop(results, child_runner, suite.draws, runs[0], len(left), rounds.open_ended(request))
        return loop.run(rounds.generate_rounds(left, runs, request, results))


# --- what is printed before the first run -------------------------------------------------------------------------


def start_text(left: Sequence[Run], results: Path, request: Request) -> str:
    end = rounds.describe_end(request)
    if not left:
        return printable(f"{results}: every planned run has a row already{f'; {end}' if end else ''}")
    warm_up = "" if rounds.is_only_run(left, request) else ", after a warm-up that does not count"
    num_rounds = len({run.round for run in left})
    names = printable("; ".join(dict.fromkeys(run.name for run in left)))
    lines = [printable(f"{results}: {plural(len(left), 'run')} in {plural(num_rounds, 'round')}{warm_up}")]
    lines += textwrap.wrap(names, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return "\n".join([*lines, *([end] if end else [])])


def plan_text(left: Sequence[Run], planned: Sequence[Run], request: Request) -> str:
    lines = [f"{len(left)} of {len(planned)} runs, in {request.results or 'a new set'}; none is started"]
    lines += ["  a warm-up that does not count"] if left and not rounds.is_only_run(left, request) else []
    lines += [f"  round {run.round}  {run.name}" + (f"  skipped: {run.skip}" if run.skip else "") for run in left]
    lines += [end] if (end := rounds.describe_end(request)) else []
    names = ("ranks", "threads_per_rank", "arch", "global_batch", "batch_per_device", "loader", "data")
    values = {name: {run.requested[name] for run in planned} for name in names}
    if values["loader"] == {"synthetic"}:
        del values["data"]  # nobody reads it
    said = {name: " or ".join(map(str, sorted(found - {0, ""}))) for name, found in values.items()}
    return "\n".join([*lines, "with " + ", ".join(f"{name} {text}" for name, text in said.items() if text)])


# --- the runs -----------------------------------------------------------------------------------------------------


class Loop:
    """Runs rounds in a set whose lock is held. planned: one of the runs. open_ended: more than `total` may follow."""

    def __init__(
        self,
        results: Path,
        child_runner: SignalForwarder,
        draws: str,
        planned: Run,
        total: int,
        open_ended: bool = False,
    ):
        self.draw = [planner.interpreter_path(), "-m", draws, "--results", results]
        self.results, self.child_runner = results, child_runner
        self.planned, self.total, self.open_ended = planned, total, open_ended
        self.began, self.num_done, self.num_unfit, self.all_ok = time.monotonic(), 0, 0, True

    def run(self, rounds_to_run: Iterable[list[Run]]) -> int:
        """Each is taken when the one before is done. Returns the exit code."""
        for runs in rounds_to_run:
            if self.num_done:
                self._draw_so_far(runs[0].round - 1)
            self.total = max(self.total, self.num_done + len(runs))
            for number, run in enumerate(runs, self.num_done + 1):
                self._run(run, f"{number}/{self.total}" if run.round else WARM_UP)
            record_environment(self.results, self.planned, self.child_runner)  # after the first run: it takes seconds
            if runs[0].round:
                self.num_done += len(runs)
            else:
                self.began = time.monotonic()
            if self.child_runner.signum:
                break
        print(flush=True)
        if (self.results / "runs.csv").exists():  # the second of two machines has no rows: the first one writes them
            self._draw_last()
        return 128 + self.child_runner.signum if self.child_runner.signum else int(not self.all_ok)

    def _run(self, run: Run, number: str) -> None:
        if self.child_runner.signum:
            return
        folder, env = planner.create_run_folder(run, self.results, number)
        self.num_unfit += bool(run.skip)
        self.all_ok &= start_launcher(run, folder, env, self.child_runner) == 0 or run.round == 0

    def _draw_so_far(self, round_number: int) -> None:
        quiet = subprocess.DEVNULL  # the last call prints the table
        self.child_runner.run(self.draw, cwd=ROOT, stdout=quiet, stderr=quiet)
        left_s = (time.monotonic() - self.began) / self.num_done * (self.total - self.num_done)
        end = datetime.datetime.now() + datetime.timedelta(seconds=left_s)
        until = f"; the suite ends at about {end:%H:%M}, in {format_duration(left_s)}"
        print(f"round {round_number} is done{'' if self.open_ended else until}", flush=True)

    def _draw_last(self) -> None:
        drawn = self.child_runner.run(self.draw, after_signal=True, cwd=ROOT) == 0
        if (read_table(self.results, "runs").status == "ok").any():
            self.all_ok &= drawn
        elif self.num_unfit and not self.child_runner.signum:
            print(NOTHING_TIMED, file=sys.stderr)
            self.all_ok = False


def build_library(strategy: str, child_runner: SignalForwarder, python: str = "") -> str:
    """Build the library that the strategy needs, where it is missing. Returns why it is not there; '' where it is."""
    if not (library := library_of(strategy)):
        return ""
    build = functools.partial(child_runner.run, start_new_session=True)
    return build_missing(library, python or planner.interpreter_path(), build)


def start_launcher(
    run: Run,
    folder: RunFolder,
    env: dict[str, str],
    child_runner: SignalForwarder,
    checkout: Path = ROOT,
    stdout: int | None = None,
) -> int:
    """Run the launcher of a checkout. The run has a row and no processes then. Returns the exit code."""
    if why_skipped := run.skip or build_library(run.strategy, child_runner, env["PYTHON"]):
        return record.record_skipped(folder, why_skipped, os.environ | env)
    name = "external" if NAME_VARIABLE in run.variables else run.strategy
    launcher = checkout / "launchers" / f"{name}.sh"
    # by bash, since an archive may have lost the launcher's right to be executed
    words = ["bash", launcher, "--run", folder.plan]
    code = child_runner.run(words, cwd=checkout, env=os.environ | env, stdout=stdout)
    if code:
        record.record_lost(folder, code, child_runner.signum, os.environ | env)
    return code


@contextlib.contextmanager
def lock_result_set(results: Path) -> Iterator[None]:
    """One suite at a time writes a set. Launchers inherit the lock, so that a killed suite's set stays in use until its
    run has ended. Raises UserError where another holds it, and for a set with other columns."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(hold_lock(results / ".suite", limit_s=0))
        except TimeoutError:
            raise UserError(
                f"{results} is in use by another suite, or by the last run of a killed one; choose another --results"
            ) from None
        os.set_inheritable(lock, True)
        for table in TABLES:
            if (results / f"{table}.csv").exists():
                append_rows(results, table, [])  # raises where columns are others
        yield


def link_latest(results: Path) -> None:
    folder = ROOT / "results"
    if results.resolve().parent == folder.resolve() and os.environ.get("NODE_RANK", "0") == "0":
        link = folder / f".latest-{os.getpid()}"
        link.symlink_to(results.resolve().name)
        link.replace(folder / "latest")


def typed_command(words: Sequence[str]) -> str:
    """The command of ./bench that starts a set like this one, as it was typed, but for where the rows go."""
    pairs = zip(["", *words], words, strict=False)
    return shlex.join(["./bench", *(word for before, word in pairs if "--results" not in (before, word.split("=")[0]))])


def record_environment(results: Path, run: Run, child_runner: SignalForwarder, interpreter: str = "") -> None:
    """Write environment.json of the set, unless it is there. interpreter: of the runs."""
    if not (results / "environment.json").exists() and not child_runner.signum:
        print("noting hardware and versions in environment.json", flush=True)
        child_runner.run(
            [
                *(interpreter or planner.interpreter_path(), "-m", "scripts.runner.environment"),
                *("--results", results, f"--command={typed_command(sys.argv[1:])}"),
            ],
            cwd=ROOT,
            env=os.environ | run.variables,
        )
