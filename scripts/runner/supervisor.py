"""The supervisor of one run: starts its command, times and watches it, ends what is left of it, and writes its row.

    python -m scripts.runner.supervisor --strategy ddp --results results/x --run-id ddp-1-120000 -- torchrun ... -m ...
    python -m scripts.runner.supervisor --strategy slurm --results results/x --run-id slurm-1-120000 --skip "no cluster"

Launchers call it, in a folder that the plan has made. Exit code: 0 ok or skipped, 1 failed, timeout or invalid, 128 +
the signal.
"""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import tyro
from tqdm import tqdm

from benchmarks.common.errors import UserError, timed_out
from benchmarks.common.files import hold_lock
from benchmarks.common.machine import boot_id
from benchmarks.common.rows import WARM_UP, append_rows
from benchmarks.common.run_folder import RUN_DIR_VARIABLE, RunFolder
from scripts.runner import processes
from scripts.runner.co_tenants import CoreCounters
from scripts.runner.kernel_variables import kernel_variables
from scripts.runner.run_status import RunEnd, find_status
from scripts.runner.start_row import row_at_start, warm_up_status
from scripts.runner.telemetry import Sampler
from scripts.sets.settings import add_settings
from scripts.shared import source_version
from scripts.shared.forward_signals import die_with_parent, ending_signals
from scripts.shared.options_as_typed import option_as_typed, split_at_dashes
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT
from scripts.stats.formatting import printable

POLL_S, LEEWAY_S, LOG_TAIL_LINES = 0.1, 1.0, 12


@dataclasses.dataclass(frozen=True)
class SupervisorOptions:
    strategy: str
    results: Path
    run_id: str
    round: int = 1
    skip: str = ""
    """Do not run; record why."""
    run_number: str = ""
    """Printed before the result, such as 3/15."""
    name: str = ""
    """Of the run in its lines; default: the strategy."""


def main(options: SupervisorOptions, command: list[str]) -> int:
    folder = RunFolder(options.results.resolve() / "logs" / options.run_id)
    folder.path.mkdir(parents=True, exist_ok=True)
    if options.skip:
        return record_skipped(options, folder)
    with hold_lock(folder.unrecorded) as unrecorded:
        code = run(options, command, folder, unrecorded)
        folder.unrecorded.unlink()
        return code


def record_skipped(options: SupervisorOptions, folder: RunFolder) -> int:
    """It is printed in the first round only."""
    requested, flags = read_requested(folder)
    row = row_at_start(folder, options.strategy, options.round, requested, os.environ) | {"options": flags}
    row |= {"status": "skipped", "reason": options.skip}
    if options.round == 0:
        row |= warm_up_status(row)
    write_row(options, folder, row, requested, {}, prints=options.round == 1)
    return 0


def run(options: SupervisorOptions, command: list[str], folder: RunFolder, unrecorded: int) -> int:
    """Run the command, and record its row. unrecorded: descriptor of the run folder's file of this name, for the
    process that has to write the row if this one cannot."""
    requested, flags = read_requested(folder)
    row = row_at_start(folder, options.strategy, options.round, requested, os.environ) | {"options": flags}
    save_unrecorded(unrecorded, row)
    sampler, cores = Sampler(folder.path), CoreCounters()
    run_end = run_command(command, folder, requested, sampler, options)
    telemetry = sampler.stop()
    row |= {"exit_code": run_end.exit_code, "wall_s": run_end.wall_s} | cores.shares(rank_cpu_s(folder))
    row |= find_status(run_end, folder, sampler)
    if row["status"] == "ok" and "images_per_s" not in row:
        print(f"{options.strategy} #{options.round} is done; the first node has its row")
        return 0
    exit_code = 0 if row["status"] in ("ok", "skipped") else 1
    if options.round == 0:
        row |= warm_up_status(row)
    resolved = (folder.summary() or {}).get("met", {})
    save_unrecorded(unrecorded, row)
    write_row(options, folder, row, requested, resolved)
    if row.get("other_gpu_processes"):
        print("warning: other processes used its GPUs meanwhile (nvidia-smi names them)", file=sys.stderr)
    of_run = {"run_id": row["run_id"]}
    append_rows(options.results, "telemetry", [of_run | sample for sample in telemetry])
    append_rows(options.results, "wall", [of_run | part for part in wall_time_parts(run_end, folder)])
    if run_end.signum:
        return 128 + run_end.signum
    return exit_code


def save_unrecorded(unrecorded: int, row: dict) -> None:
    content = json.dumps(row, default=float).encode()
    with contextlib.suppress(OSError):  # a full disk; what is there stays, up to where it was written over
        if os.pwrite(unrecorded, content.ljust(os.fstat(unrecorded).st_size), 0) >= len(content):
            os.ftruncate(unrecorded, len(content))


def read_requested(folder: RunFolder) -> tuple[dict, str]:
    """The requested settings, and the flags that people typed; both empty where they cannot be read."""
    try:
        settings = folder.settings()
    except UserError as error:
        print(f"warning: {error}; its row is kept, and can be grouped with no other", file=sys.stderr)
        return {}, ""
    return settings["asked"], settings.get("flags", "")


def write_row(
    options: SupervisorOptions, folder: RunFolder, row: dict, requested: dict, resolved: dict, prints: bool = True
) -> None:
    """Write the row and its settings, and print what became of the run. resolved: the half that the reporting rank
    left in summary.json, {} without one; the commit, the local changes and the kernels' variables are added here."""
    try:
        if requested:
            if resolved:
                # those of the start: a commit that is made during the run is not what ran
                resolved = resolved | {"commit": row["commit"] or "", "local_changes": source_version.local_changes()}
                resolved |= {"variables": kernel_variables(os.environ)}
                folder.add_resolved(resolved)
            row = row | {"settings": add_settings(options.results, requested, resolved)}
        append_rows(options.results, "runs", [row])
    finally:  # also on a full disk, where the line is all that is left
        if prints:
            print(result_line(options, row))
        if row["status"] not in ("ok", "skipped", WARM_UP):
            print_tail(folder.log)


def run_command(
    command: list[str], folder: RunFolder, requested: dict, sampler: Sampler, options: SupervisorOptions
) -> RunEnd:
    """Run `command` to its end, to the limit, or to the first ending signal; leave no process of it."""
    signals: list[int] = []
    for signum in ending_signals():
        signal.signal(signum, lambda number, frame: signals.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending_signals())  # SignalForwarder blocks SIGINT
    with open(folder.log, "ab") as log:  # a batch job appends to it too
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        began = time.monotonic()
        num_ranks = int(os.environ.get("NPROC") or 1)  # that the launcher starts
        run_end = RunEnd(0, 0.0, began, limit_s=requested.get("limit_s", 0.0), num_ranks=num_ranks)
        run_end.is_rank = run_end.num_ranks == 1 and command[1:2] == ["-m"] and command[2].startswith("benchmarks.")
        child = start_command(command, folder, requested, log)
        try:
            sampler.start()
            wait_for_end(child, folder, options, run_end, signals, log)
            if child.poll() and not signals and "SLURM_JOB_ID" in os.environ:
                time.sleep(LEEWAY_S)  # Slurm signals all processes of a job, and this one may get its signal last
            if signals and child.poll() != 0:
                run_end.signum = signals[0]
            elif child.poll() is None:
                run_end.timed_out = True
                run_end.stopped = processes.continue_stopped(folder.path)
                processes.write_stacks(folder.path, log)
        finally:
            end_run(child, folder, requested, run_end)
    if run_end.signum:
        run_end.wall_s = time.monotonic() - began
    return run_end


def start_command(command: list[str], folder: RunFolder, requested: dict, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own; it dies with this process."""
    checkpoint_dir = requested.get("checkpoint_dir", "")
    env = {RUN_DIR_VARIABLE: str(folder.path), "PYTHONUNBUFFERED": "1"}
    env["CHECKPOINT_DIR"] = str(ROOT / checkpoint_dir) if checkpoint_dir else ""  # for slurm_run_job.sh
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=os.environ | env,
        cwd=ROOT,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )


def end_run(child: subprocess.Popen[bytes], folder: RunFolder, requested: dict, run_end: RunEnd) -> None:
    """End every process that is left, and note how long that took and the exit code. A command that has not ended by
    itself gets the time that its ranks need for a checkpoint."""
    run_end.wall_s = time.monotonic() - run_end.began
    run_end.grace_s = checkpoint_grace_s(requested, folder, run_end.wall_s)
    grace_s = (run_end.grace_s or processes.GRACE_S) if child.poll() is None else 0.0
    processes.end_processes(folder.path, grace_s)
    run_end.ending_s = time.monotonic() - run_end.began - run_end.wall_s
    try:
        run_end.exit_code = child.wait(processes.GRACE_S)
    except subprocess.TimeoutExpired:  # the kernel holds it, as a hung file system does: leave it
        run_end.exit_code = -signal.SIGKILL


def checkpoint_grace_s(requested: dict, folder: RunFolder, ran_s: float) -> float:
    """Seconds that ranks have to stop and to write a checkpoint; 0 where they write none. They stop at the end of the
    window that is open."""
    if not requested.get("checkpoint_dir"):
        return 0.0
    patience_s = max(processes.GRACE_S, requested["timeout_s"])
    step_s = folder.step_s() or min(ran_s, patience_s)  # before the first report a step may be long
    return patience_s + (requested["window_steps"] + 1) * step_s


def wait_for_end(
    child: subprocess.Popen[bytes],
    folder: RunFolder,
    options: SupervisorOptions,
    run_end: RunEnd,
    signals: list[int],
    log: IO[bytes],
) -> None:
    """Wait for the child, with a bar on a terminal, until it ends, a signal has come or its limit has passed.

    While a batch job is queued the limit does not run. When the first rank leaves a note, look for ranks that hang,
    before torchrun kills them; where it waited for one in vain, write all stacks.
    """
    limit_s, limit_from = run_end.limit_s, time.monotonic()
    name = f"{options.run_number} {options.name or options.strategy} #{options.round}".strip()
    with tqdm(desc=name, unit="step", disable=None, leave=False, dynamic_ncols=True, mininterval=0.2) as bar:
        while child.poll() is None and not signals and not (limit_s and time.monotonic() - limit_from > limit_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            if folder.queued.exists():
                limit_from = time.monotonic()
            if run_end.stopped is None and (causes := folder.causes()):
                run_end.stopped = processes.continue_stopped(folder.path)
                if timed_out(causes[0]["reason"]):
                    processes.write_stacks(folder.path, log)
            if not bar.disable and (progress := folder.progress()):
                done, bar.total = progress
                bar.update(done - bar.n)
            bar.refresh()


def wall_time_parts(run_end: RunEnd, folder: RunFolder) -> list[dict]:
    """Named parts, which sum to wall_s."""
    summary = folder.summary()
    if not summary:
        return []
    wall = summary["wall"]
    if wall["boot_id"] != boot_id():  # another node's clock
        parts = {"queue, start and shutdown": run_end.wall_s - sum(wall["parts"].values())} | wall["parts"]
    else:
        parts = {"launcher and start of processes": wall["started_at"] - run_end.began}
        parts |= wall["parts"] | {"shutdown": run_end.began + run_end.wall_s - wall["ended_at"]}
    return [{"part": part, "seconds": seconds} for part, seconds in parts.items()]


def rank_cpu_s(folder: RunFolder) -> float | None:
    """CPU time of the reporting rank, where it ran on this machine."""
    wall = (folder.summary() or {}).get("wall", {})
    return wall.get("cpu_s") if wall.get("boot_id") == boot_id() else None


def result_line(options: SupervisorOptions, row: dict) -> str:
    seconds = f"{row['wall_s']:7.1f} s" if "wall_s" in row else " " * 9
    name = options.name or options.strategy
    head = f"{options.run_number:>7} {name:<22} #{options.round}  {row['status']:<11} {seconds}"
    if row["status"] != "ok":
        return f"{head}  {printable(row['reason'])}"
    rate = f"{row['images_per_s']:9.1f} images/s" if row.get("images_per_s") else ""
    return f"{head}  {rate}" + (f"  top-1 {row['acc1']:.1f} %" if row.get("acc1") is not None else "")


def print_tail(log: Path) -> None:
    lines = log.read_bytes().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    shown = (f"        | {printable(line[:160])}" for line in lines)  # without what steers a terminal
    print(f"        last lines of {log}:", *shown, sep="\n", file=sys.stderr)


def run_command_line() -> int:
    words, command = split_at_dashes(sys.argv[1:])
    try:
        return main(tyro.cli(SupervisorOptions, args=words), command)
    except OSError as error:  # such as a full disk under the log
        remedy = f"free space, or choose another {option_as_typed('RESULTS', '')}"
        print(f"error: {error.filename or 'the run'}: {error.strerror}; {remedy}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
