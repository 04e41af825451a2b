"""The one loop: starts the launchers of a plan, one after the other, and goes on after a failure.

bench-all, bench-<strategy>, sweeps and scaling studies are `suite`; the proof hands its own runs to `run_each`.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.common.store.results import (
    SCHEMA,
    WARM_UP,
    add_settings,
    append_rows,
    read_table,
    write_text_atomically,
)
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import locked, read_regular_file
from benchmarks.common.system.forward_signals import ENDING_SIGNALS, SignalForwarder, forward_signals
from benchmarks.common.system.repository import ROOT
from scripts.runner import processes
from scripts.runner.attempt_row import row_at_start, warm_up_status
from scripts.runner.rendezvous import remove_rendezvous
from scripts.runner.run_plan import Run, create_run_folder, interpreter_path

GRACE_S = 5.0
HOLDER_BYTES, LOST_ROW_BYTES = 1000, 100_000


def run_suite(
    rounds: Iterable[list[Run]], results: Path, report: Sequence[str], total: int, open_ended: bool = False
) -> int:
    """Run the rounds in a set, which becomes results/latest, and draw its charts after every one, and first as soon as
    there is something to compare.

    rounds: each is asked for when the one before is done. report: the module, and its words after --results, that
    draws. total: runs that are sure; open_ended: there may be more. Returns the exit code: 0 where every run is ok or
    skipped, 1 otherwise, 129, 130, 131 or 143 after a signal. Raises UserError where the set is in use.
    """
    draw = [interpreter_path(), "-m", report[0], "--results", results, *report[1:]]
    all_ok = True
    with lock_result_set(results), forward_signals() as children:
        link_latest(results)
        first_charts = FirstCharts(results, draw, children)
        began, num_done = time.monotonic(), 0
        for of_round in rounds:
            if num_done:
                quiet = subprocess.DEVNULL  # it is said at the end
                drawn = children.run(draw, cwd=ROOT, stdout=quiet, stderr=quiet) == 0
                left_s = (time.monotonic() - began) / num_done * (total - num_done)
                print(progress_line(of_round[0].round - 1, drawn, 0 if open_ended else left_s, results), flush=True)
            record_environment(results, of_round[0], children)
            total = max(total, num_done + len(of_round))
            first_charts.last_of_round = of_round[-1]
            all_ok &= run_each(of_round, results, children, first_charts, first=num_done + 1, total=total)
            num_done += len(of_round) if of_round[0].round else 0
            began = began if of_round[0].round else time.monotonic()
            if children.signum:
                break
        print(flush=True)
        if (results / "runs.csv").exists():  # not on the second of two machines, whose rows are the first one's
            failed = children.run(draw, after_signal=True, cwd=ROOT) != 0
            all_ok &= not (failed and (read_table(results, "runs").status == "ok").any())
    return 128 + children.signum if children.signum else int(not all_ok)


@dataclasses.dataclass
class FirstCharts:
    """Draws the charts of a new set between two runs of its first round, once, when two strategies have a timed run.

    last_of_round: the run after which the charts are drawn anyway.
    """

    results: Path
    draw: Sequence[object]
    children: SignalForwarder
    last_of_round: Run | None = None
    is_done: bool = False

    def __call__(self, run: Run, folder: RunFolder) -> None:
        if self.is_done or run is self.last_of_round or self.children.signum:
            return
        self.is_done = (self.results / "charts").exists()
        runs = read_table(self.results, "runs")
        if self.is_done or runs[runs.status == "ok"].strategy.nunique() < 2:
            return
        self.is_done = True
        quiet = subprocess.DEVNULL
        if self.children.run(self.draw, cwd=ROOT, stdout=quiet, stderr=quiet) == 0:
            print(f"two strategies have a run; the first charts: {self.results}/charts", flush=True)


def progress_line(number: int, drawn: bool, left_s: float, results: Path) -> str:
    """What is said between two rounds: when the suite will end (0: unknown), and where the first picture is."""
    charts = f"; charts so far: {results}/charts" if drawn else ""
    if not left_s:
        return f"round {number} is done{charts}"
    end = datetime.datetime.now() + datetime.timedelta(seconds=left_s)
    minutes = f"{left_s / 60:.0f} minutes" if left_s >= 90 else f"{left_s:.0f} s"
    return f"round {number} is done; the suite ends at about {end:%H:%M}, in {minutes}{charts}"


def run_each(
    runs: Sequence[Run],
    results: Path,
    children: SignalForwarder,
    after_run: Callable[[Run, RunFolder], None] | None = None,
    *,
    before_run: Callable[[Run, RunFolder], None] | None = None,
    first: int = 1,
    total: int = 0,
    checkout: Path = ROOT,
    stdout: int | None = None,
) -> bool:
    """Start the launcher of every run, until a signal; returns whether all ended ok or skipped.

    before_run, after_run: called with each run and its folder, before its start, and when its row is in the set.
    first, total: for the labels. checkout: whose launchers. stdout: of these, as subprocess takes it.
    """
    all_ok = True
    for number, run in enumerate(runs, first):
        if children.signum:
            break
        folder, env = create_run_folder(run, results, f"{number}/{total or len(runs)}" if run.round else WARM_UP)
        if before_run:
            before_run(run, folder)
        all_ok &= start_launcher(run, folder, env, children, checkout, stdout) == 0
        if after_run:
            after_run(run, folder)
    return all_ok


def start_launcher(
    run: Run,
    folder: RunFolder,
    env: dict[str, str],
    children: SignalForwarder,
    checkout: Path = ROOT,
    stdout: int | None = None,
) -> int:
    """Start a run's launcher, of whatever checkout, and leave nothing of it but its row; returns the exit code."""
    launcher = checkout / "launchers" / f"{run.strategy}.sh"
    folder.unrecorded.touch()
    code = children.run([launcher], cwd=checkout, env=os.environ | env, stdout=stdout)
    if code:
        record_failed_launcher(run, folder, code, env, children.signum)
    folder.unrecorded.unlink(missing_ok=True)
    return code


def record_failed_launcher(run: Run, folder: RunFolder, code: int, env: dict[str, str], heard: int) -> None:
    """End what is left of a run whose launcher or attempt failed, and write its row, unless that has done so itself."""
    processes.end_processes(folder.path, GRACE_S)
    remove_rendezvous(folder.run_id)
    if (read_table(folder.results, "runs").run_id == folder.run_id).any():
        return
    row = row_at_start(folder, run.strategy, run.round, run.requested, env)
    finished = read_unrecorded(folder)
    ended = f"{signal.Signals(-code).name} ended the attempt" if code < 0 else f"the launcher ended with code {code}"
    row |= {"status": "failed", "reason": f"{ended}; its processes were ended, and nothing is known"}
    if heard and -code in ENDING_SIGNALS:
        row |= {"status": "interrupted", "reason": f"{signal.Signals(heard).name} to the suite, before the run began"}
    row |= warm_up_status(row) if run.round == 0 else {}
    row |= {"settings": add_settings(folder.results, run.requested), "options": run.flags}
    row = with_settings(folder, finished) if "status" in finished else row
    append_rows(folder.results, "runs", [row])
    print(
        f"{env['LABEL']:>7} {run.strategy:<18} #{run.round}  {row['status']:<11}            {row.get('reason', '')}",
        flush=True,
    )


@contextlib.contextmanager
def lock_result_set(results: Path) -> Iterator[None]:
    """Hold the set's lock, so that one suite at a time writes it, and write the rows of lost runs first.

    Launchers inherit the lock. So if a suite is killed, its set stays in use until the attempt in progress has written
    its row. A run is lost if its suite and its attempt were both killed.
    Raises UserError, which names the process that has the set.
    """
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(results / ".suite", limit_s=0))
        except TimeoutError:
            raise UserError(f"{results} is in use {describe_holder(results)}; choose another RESULTS=") from None
        os.set_inheritable(lock, True)
        write_text_atomically(results / ".holder", f"{os.getpid()} {socket.gethostname()}\n")
        record_lost_runs(results)
        yield


def describe_holder(results: Path) -> str:
    """Which process has the set, such as 'by process 123', as far as its .holder says."""
    try:
        pid, host = read_regular_file(results / ".holder", HOLDER_BYTES).decode().split()
    except (OSError, ValueError):
        return "by another process"
    elsewhere = host != socket.gethostname()
    if not elsewhere and not Path(f"/proc/{int(pid)}").exists():
        return f"by the last run of process {pid}, which was killed (try again in a minute)"
    return f"by process {pid}{f' on {host}' if elsewhere else ''}"


def record_lost_runs(results: Path) -> None:
    """End what is left of runs whose suite and attempt were killed, and write their rows."""
    for path in sorted(results.glob("logs/*/unrecorded")):
        folder = RunFolder(path.parent.resolve())
        with (
            contextlib.suppress(TimeoutError),
            locked(path, limit_s=0),
        ):  # a living attempt keeps the lock of its own run
            processes.end_processes(folder.path, GRACE_S)
            remove_rendezvous(folder.run_id)
            if not (read_table(folder.results, "runs").run_id == folder.run_id).any():
                append_rows(folder.results, "runs", [lost_row(folder)])
            path.unlink()


def lost_row(folder: RunFolder) -> dict:
    """The row of a run whose attempt could not write it: what was asked, and no more unless the run had ended."""
    row = {"schema": SCHEMA, "run_id": folder.run_id}
    if named := re.fullmatch(r"(.+?)-(\d+)-.*", folder.run_id):
        row |= {"strategy": named[1], "repeat": int(named[2])}
    left = read_unrecorded(folder)
    if "status" in left:
        return with_settings(folder, row | left)
    row |= left
    row |= {"status": "failed", "reason": "its attempt was killed or could not write this row, and nothing is known"}
    row |= warm_up_status(row) if row.get("repeat") == 0 else {}
    return with_settings(folder, row)


def read_unrecorded(folder: RunFolder) -> dict:
    """What the attempt knew of the row: all of it, with a status, where the run had ended; {} where none began."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(read_regular_file(folder.unrecorded, LOST_ROW_BYTES))
        return found if isinstance(found, dict) else {}
    return {}


def with_settings(folder: RunFolder, row: dict) -> dict:
    """The row with the hash of what its folder says of the run's settings, where it says it."""
    with contextlib.suppress(UserError):
        settings = folder.settings()
        return row | {"settings": add_settings(folder.results, settings["asked"], settings.get("met"))}
    return row


def link_latest(results: Path) -> None:
    """Make the set results/latest, where it lies in results/."""
    folder = ROOT / "results"
    if results.resolve().parent == folder.resolve() and os.environ.get("NODE_RANK", "0") == "0":
        latest, link = folder / "latest", folder / f".latest-{os.getpid()}"
        if latest.exists() and not latest.is_symlink():
            print(f"warning: {latest} is no link, and stays as it is; move it away", file=sys.stderr)
            return
        link.symlink_to(results.resolve().name)
        link.replace(latest)


def record_environment(results: Path, run: Run, children: SignalForwarder, interpreter: str = "") -> None:
    """Say in the set what its numbers depend on, once; by the interpreter that the runs have, where it is another."""
    if not (results / "environment.json").exists():
        env = os.environ | run.variables | {"CONFIG": run.config.config}
        children.run(
            [interpreter or interpreter_path(), "-m", "scripts.runner.environment", "--results", results],
            cwd=ROOT,
            env=env,
        )
