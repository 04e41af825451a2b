"""Starts the launchers of a plan, one after the other, and goes on after a failure."""

import contextlib
import datetime
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from benchmarks.common.rows import WARM_UP, append_rows, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner.lost_runs import record_failed_launcher, record_lost_runs
from scripts.runner.run_plan import Run, create_run_folder, interpreter_path
from scripts.setup.libraries import build_missing, library_of
from scripts.shared.forward_signals import SignalForwarder, forward_signals
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.repository import ROOT
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
    """Run the rounds in a set, which becomes results/latest, and draw its charts after every one.

    rounds: an iterator, from which each round is taken when the one before is done. chart_command: the module that
    draws, and its flags. total: planned runs. planned: one of them, for environment.json. open_ended: more runs may
    follow.

    Returns 0 where every run is ok or skipped; 1 otherwise, and where nothing fits; 128 + the signal. Raises UserError
    where the set is in use.
    """
    draw = [interpreter_path(), "-m", chart_command[0], "--results", results, *chart_command[1:]]
    all_ok = True
    with lock_result_set(results), forward_signals() as child_runner:
        link_latest(results)
        began, num_done = time.monotonic(), 0
        num_unfit = 0
        print(start_text, flush=True)
        for runs in rounds:
            if num_done:
                quiet = subprocess.DEVNULL  # the last call prints the table
                drawn = child_runner.run(draw, cwd=ROOT, stdout=quiet, stderr=quiet) == 0
                left_s = (time.monotonic() - began) / num_done * (total - num_done)
                print(progress_line(runs[0].round - 1, drawn, 0 if open_ended else left_s, results), flush=True)
            total = max(total, num_done + len(runs))
            all_ok &= run_each(runs, results, child_runner, num_done + 1, total)
            record_environment(results, planned, child_runner)  # the first run does not wait for its imports
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
    """False where the charts could not be drawn, or nothing was timed since nothing fits. num_unfit: planned runs
    that did not fit."""
    drawn = child_runner.run(draw, after_signal=True, cwd=ROOT) == 0
    if (read_table(results, "runs").status == "ok").any():
        return drawn
    if num_unfit and not child_runner.signum:
        print(NOTHING_TIMED, file=sys.stderr)
        return False
    return True


def progress_line(round_number: int, drawn: bool, left_s: float, results: Path) -> str:
    """left_s: until the suite ends; 0 where it is unknown."""
    charts = f"; charts so far: {results}/charts" if drawn else ""
    if not left_s:
        return f"round {round_number} is done{charts}"
    end = datetime.datetime.now() + datetime.timedelta(seconds=left_s)
    return f"round {round_number} is done; the suite ends at about {end:%H:%M}, in {format_duration(left_s)}{charts}"


def run_each(runs: Sequence[Run], results: Path, child_runner: SignalForwarder, first: int, total: int) -> bool:
    """Start the launcher of every run, until a signal; returns whether all ended ok or skipped, but for a warm-up.
    first, total: of the numbers that are printed, such as 3/15."""
    all_ok = True
    for number, run in enumerate(runs, first):
        if child_runner.signum:
            break
        folder, env = create_run_folder(run, results, f"{number}/{total}" if run.round else WARM_UP)
        is_ok = start_launcher(run, folder, env, child_runner) == 0
        all_ok &= is_ok or run.round == 0
    return all_ok


def start_launcher(
    run: Run,
    folder: RunFolder,
    env: dict[str, str],
    child_runner: SignalForwarder,
    checkout: Path = ROOT,
    stdout: int | None = None,
) -> int:
    """Run the launcher, and make sure that the run has a row and no processes; returns the exit code.

    A library that the strategy needs is built first, where it is missing; where it cannot be, the row says why.
    """
    if (library := library_of(run.strategy)) and not env.get("SKIP"):
        build = functools.partial(child_runner.run, start_new_session=True)
        env = env | {"SKIP": build_missing(library, env.get("PYTHON") or interpreter_path(), build)}
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
    """Hold the lock of a set, its file .suite: one suite at a time writes it. First write the rows of lost runs.

    Launchers inherit the lock. So if a suite is killed, its set stays in use until the run in progress has its row.
    Raises UserError where another process holds it, and for a set of a version with other columns.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(hold_lock(results / ".suite", limit_s=0))
        except TimeoutError:
            raise UserError(
                f"{results} is in use by another suite, or by the last run of a killed one; "
                f"choose another {option_as_typed('RESULTS', '')}"
            ) from None
        os.set_inheritable(lock, True)
        for table in TABLES:
            if (results / f"{table}.csv").exists():
                append_rows(results, table, [])  # raises now, and not after the first run, where columns are others
        record_lost_runs(results)
        yield


def link_latest(results: Path) -> None:
    folder = ROOT / "results"
    if results.resolve().parent == folder.resolve() and os.environ.get("NODE_RANK", "0") == "0":
        latest, link = folder / "latest", folder / f".latest-{os.getpid()}"
        if latest.exists() and not latest.is_symlink():
            print(f"warning: {latest} is not a link, and is left as it is; move it away", file=sys.stderr)
            return
        link.symlink_to(results.resolve().name)
        link.replace(latest)


def record_environment(results: Path, run: Run, child_runner: SignalForwarder, interpreter: str = "") -> None:
    """Write environment.json of the set, unless it is there. interpreter: that of the runs, where this one has
    another."""
    if not child_runner.signum and not (results / "environment.json").exists():
        print("noting hardware and versions in environment.json", flush=True)
        env = os.environ | run.variables | {"CONFIG": run.config.config}
        child_runner.run(
            [interpreter or interpreter_path(), "-m", "scripts.runner.environment", "--results", results],
            cwd=ROOT,
            env=env,
        )
