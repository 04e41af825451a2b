"""Starts the launchers of a plan, one after the other, and goes on after a failure.

`run_planned` runs all strategies and the studies. The proof calls `run_each`.
"""

import contextlib
import dataclasses
import datetime
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.store.results import WARM_UP, read_table, write_text_atomically
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import hold_lock
from benchmarks.common.system.forward_signals import SignalForwarder, forward_signals
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.repository import ROOT
from scripts.runner import late_builds
from scripts.runner.lost_runs import record_failed_launcher, record_lost_runs
from scripts.runner.run_plan import Run, create_run_folder, interpreter_path
from scripts.runner.start_row import SKIP_PRINTED
from scripts.stats.formatting import format_duration
from scripts.strategies.external import NAME_VARIABLE

NOTHING_TIMED = (
    "failed: no run was timed; the column reason of runs.csv says why, and what would fit, such as a smaller batch: "
    "-- --batch-per-device 64"
)


def run_planned(
    rounds: Iterable[list[Run]],
    results: Path,
    chart_command: Sequence[str],
    total: int,
    *,
    planned: Run,
    open_ended: bool,
    start_text: str,
) -> int:
    """Run the rounds in a set, which becomes results/latest, and draw its charts after every one, and first as soon as
    there is something to compare.

    rounds: an iterator, from which each round is taken when the round before is done. chart_command: the module that
    draws, and its flags. total: the planned runs. planned: one of them, whose variables environment.json gets.
    open_ended: more runs may follow. start_text: is printed before the first run.

    Returns the exit code: 0 where every run is ok or skipped, 1 otherwise, and where the set has no ok run since what
    was planned does not fit; 129, 130, 131 or 143 after a signal. Raises UserError where the set is in use.
    """
    draw = [interpreter_path(), "-m", chart_command[0], "--results", results, *chart_command[1:]]
    all_ok = True
    with lock_result_set(results), forward_signals() as child_runner:
        link_latest(results)
        first_charts = FirstCharts(results, draw, child_runner)
        builds = late_builds.LateBuilds(results, draw, child_runner)
        launchers = Launchers(before_run=builds, after_run=first_charts)
        began, num_done = time.monotonic(), 0
        skipped: set[str] = set()
        num_unfit = 0
        print(start_text, flush=True)
        for runs in rounds:
            if num_done:
                quiet = subprocess.DEVNULL  # the last call prints the table
                first_charts.is_done = True
                drawn = child_runner.run(draw, cwd=ROOT, stdout=quiet, stderr=quiet) == 0
                left_s = (time.monotonic() - began - builds.spent_s) / num_done * (total - num_done)
                print(progress_line(runs[0].round - 1, drawn, 0 if open_ended else left_s, results), flush=True)
            total = max(total, num_done + len(runs))
            first_charts.last_of_round = runs[-1]
            all_ok &= run_each(hide_known_skips(runs, skipped), results, child_runner, num_done + 1, total, launchers)
            record_environment(results, planned, child_runner)  # the first run does not wait for its imports
            skipped |= skipped_settings(runs, results)
            num_unfit += sum(bool(run.variables.get("SKIP")) for run in runs)
            num_done += len(runs) if runs[0].round else 0
            began = began if runs[0].round else time.monotonic()
            if child_runner.signum:
                break
        print(flush=True)
        if (results / "runs.csv").exists():  # the second of two machines has no rows: the first one writes them
            record_environment(results, planned, child_runner)  # where a signal stopped it, and no run is left
            all_ok &= draw_last_charts(results, draw, child_runner, num_unfit)
    return 128 + child_runner.signum if child_runner.signum else int(not all_ok)


def draw_last_charts(results: Path, draw: Sequence[object], child_runner: SignalForwarder, num_unfit: int) -> bool:
    """Draw the charts after the last round, and print their table. num_unfit: planned runs that did not fit.

    Returns False where the charts of timed runs could not be drawn, and where nothing was timed since nothing fits.
    """
    drawn = child_runner.run(draw, after_signal=True, cwd=ROOT) == 0
    if (read_table(results, "runs").status == "ok").any():
        return drawn
    if num_unfit and not child_runner.signum:
        print(NOTHING_TIMED, file=sys.stderr)
        return False
    return True


def skipped_settings(runs: Sequence[Run], results: Path) -> set[str]:
    """The hashes of the requested settings of those runs that were skipped."""
    rows, keys = read_table(results, "runs"), {run.key for run in runs}
    # a skipped run has no resolved half, so that its hash is that of the requested half
    skipped = rows[(rows.status == "skipped") & (rows["repeat"] > 0)]
    return {name for name, number in zip(skipped.settings, skipped["repeat"], strict=True) if (name, number) in keys}


def hide_known_skips(runs: Sequence[Run], skipped: set[str]) -> list[Run]:
    """The runs; where a run of an earlier round with the same settings was skipped, another skip is not printed."""
    said = {SKIP_PRINTED: "yes"}
    return [
        dataclasses.replace(run, variables=run.variables | said) if run.requested_hash in skipped else run
        for run in runs
    ]


@dataclasses.dataclass
class FirstCharts:
    """Draws the charts of a new set between two runs of its first round, once, when two strategies have a timed run.

    last_of_round: the run after which the charts are drawn anyway.
    """

    results: Path
    draw: Sequence[object]
    child_runner: SignalForwarder
    last_of_round: Run | None = None
    is_done: bool = False

    def __call__(self, run: Run, folder: RunFolder) -> None:
        if self.is_done or run is self.last_of_round or self.child_runner.signum:
            return
        self.is_done = (self.results / "charts").exists()
        runs = read_table(self.results, "runs")
        if self.is_done or runs[runs.status == "ok"].strategy.nunique() < 2:
            return
        self.is_done = True
        quiet = subprocess.DEVNULL
        if self.child_runner.run(self.draw, cwd=ROOT, stdout=quiet, stderr=quiet) == 0:
            print(f"two strategies have a run; the first charts: {self.results}/charts", flush=True)


def progress_line(round_number: int, drawn: bool, left_s: float, results: Path) -> str:
    """The line between two rounds: when the suite will end, and where its charts are. left_s: 0 where it is unknown."""
    charts = f"; charts so far: {results}/charts" if drawn else ""
    if not left_s:
        return f"round {round_number} is done{charts}"
    end = datetime.datetime.now() + datetime.timedelta(seconds=left_s)
    return f"round {round_number} is done; the suite ends at about {end:%H:%M}, in {format_duration(left_s)}{charts}"


@dataclasses.dataclass(frozen=True)
class Launchers:
    """The launchers that start runs."""

    checkout: Path = ROOT
    """The checkout of the launchers and of the code that they start."""
    before_run: Callable[[Run, RunFolder], None] = lambda run, folder: None
    """Called with each run and its folder, before its start."""
    after_run: Callable[[Run, RunFolder], None] = lambda run, folder: None
    """The same, when its row is in the set."""


def run_each(
    runs: Sequence[Run],
    results: Path,
    child_runner: SignalForwarder,
    first: int,
    total: int,
    launchers: Launchers,
) -> bool:
    """Start the launcher of every run, until a signal; returns whether all ended ok or skipped, but for a warm-up.

    first: the number of the first of these runs. total: the number of all runs of the suite. Both are
    printed, such as 3/15.
    """
    all_ok = True
    for number, run in enumerate(runs, first):
        if child_runner.signum:
            break
        folder, env = create_run_folder(run, results, f"{number}/{total}" if run.round else WARM_UP)
        launchers.before_run(run, folder)
        is_ok = start_launcher(run, folder, env, child_runner, launchers.checkout) == 0
        all_ok &= is_ok or run.round == 0
        launchers.after_run(run, folder)
    return all_ok


def start_launcher(
    run: Run,
    folder: RunFolder,
    env: dict[str, str],
    child_runner: SignalForwarder,
    checkout: Path = ROOT,
    stdout: int | None = None,
) -> int:
    """Run the launcher of a run, and make sure that the run has a row and no processes; returns the exit code."""
    name = "external" if NAME_VARIABLE in run.variables else run.strategy
    launcher = checkout / "launchers" / f"{name}.sh"
    folder.unrecorded.touch()
    code = child_runner.run([launcher], cwd=checkout, env=os.environ | env, stdout=stdout)
    if code:
        record_failed_launcher(run, folder, code, env, child_runner.signum)
    folder.unrecorded.unlink(missing_ok=True)
    return code


@contextlib.contextmanager
def lock_result_set(results: Path) -> Iterator[None]:
    """Hold the lock of a set, its file .suite, so that one suite at a time writes the set. First writes the rows of
    lost runs: those whose suite and supervisor were both killed.

    The suite writes its process and host to the file .holder. Launchers inherit the lock. So if a suite is killed, its
    set stays in use until the supervisor of the run in progress has written the row of this run.
    Raises UserError where another process holds the lock. It names the process as far as .holder says.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(hold_lock(results / ".suite", limit_s=0))
        except TimeoutError:
            raise UserError(
                f"{results} is in use {describe_holder(results)}; choose another {option_as_typed('RESULTS', '')}"
            ) from None
        os.set_inheritable(lock, True)
        write_text_atomically(results / ".holder", f"{os.getpid()} {socket.gethostname()}\n")
        record_lost_runs(results)
        yield


def describe_holder(results: Path) -> str:
    """Which process has the set, such as 'by process 123', as far as its .holder says."""
    try:
        number, host = (results / ".holder").read_text().split()
        pid = int(number)
    except (OSError, ValueError):
        return "by another process"
    elsewhere = host != socket.gethostname()
    if not elsewhere and not Path(f"/proc/{pid}").exists():
        return f"by the last run of process {pid}, which was killed (try again in a minute)"
    return f"by process {pid}{f' on {host}' if elsewhere else ''}"


def link_latest(results: Path) -> None:
    """Point the link results/latest to the set, where the set lies in results/."""
    folder = ROOT / "results"
    if results.resolve().parent == folder.resolve() and os.environ.get("NODE_RANK", "0") == "0":
        latest, link = folder / "latest", folder / f".latest-{os.getpid()}"
        if latest.exists() and not latest.is_symlink():
            print(f"warning: {latest} is not a link, and is left as it is; move it away", file=sys.stderr)
            return
        link.symlink_to(results.resolve().name)
        link.replace(latest)


def record_environment(results: Path, run: Run, child_runner: SignalForwarder, interpreter: str = "") -> None:
    """Write environment.json of the set, unless it is there, or a signal has ended the suite.

    interpreter: that of the runs, where this process has another.
    """
    if not child_runner.signum and not (results / "environment.json").exists():
        print("noting hardware and versions in environment.json", flush=True)
        env = os.environ | run.variables | {"CONFIG": run.config.config}
        child_runner.run(
            [interpreter or interpreter_path(), "-m", "scripts.runner.environment", "--results", results],
            cwd=ROOT,
            env=env,
        )
