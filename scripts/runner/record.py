"""Records one run: starts its command, watches it, ends what is left of it, and appends its row.

    python -m scripts.runner.record --run results/x/logs/ddp-1-120000/run.yaml -- torchrun ... -m benchmarks.ddp ...
    python -m scripts.runner.record --run results/x/logs/slurm-1-120000/run.yaml --skip "no cluster"

Exit code: 0 ok or skipped, 1 failed, timeout or invalid, 128 + the signal.
"""

import contextlib
import datetime
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from benchmarks.common.columns import REQUESTED_COLUMNS
from benchmarks.common.errors import timed_out
from benchmarks.common.files import hold_lock
from benchmarks.common.machine import boot_id
from benchmarks.common.rows import SCHEMA, WARM_UP, append_rows, read_table
from benchmarks.common.run_folder import RUN_DIR_VARIABLE, RunFolder
from scripts.results.formatting import printable
from scripts.results.settings import add_settings
from scripts.runner import processes
from scripts.runner.as_planned import why_invalid
from scripts.runner.cause import RunEnd, find_status
from scripts.runner.telemetry import CoreCounters, Sampler
from scripts.runner.variables import recorded_variables
from scripts.shared import source_version
from scripts.shared.forward_signals import die_with_parent, ending_signals
from scripts.shared.programs import run_main_and_exit
from scripts.shared.repository import ROOT

POLL_S, LEEWAY_S, LOG_TAIL_LINES = 0.1, 1.0, 12
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def main(folder: RunFolder, command: list[str]) -> int:
    plan = folder.read_plan()
    row = row_at_start(folder, plan, os.environ)
    sampler, cores = Sampler(folder.path), CoreCounters()
    run_end = run_command(command, folder, plan, sampler)
    telemetry, summary = sampler.stop(), folder.summary() or {}
    process = summary.get("process", {})
    is_here = process.get("boot_id") == boot_id()  # else another node's clock and power
    row |= {"exit_code": run_end.exit_code, "wall_s": run_end.wall_s}
    row |= cores.shares(process.get("cpu_s") if is_here else None)
    row |= find_status(run_end, folder, bool(summary))
    if row["status"] == "ok" and summary:
        row |= measured_columns(summary["row"], sampler if is_here else None)
    elif row["status"] == "ok":
        print(f"{row['strategy']} #{plan['round']} is done; the first node has its row")
        return 0
    reported = summary.get("reported", {})
    if row["status"] == "ok" and (why := why_invalid(reported, os.environ, run_end.num_ranks)):
        row |= {"status": "invalid", "reason": why}
    # of the start: a commit that is made during the run is not what ran
    changes = {"commit": row["commit"] or "", "local_changes": source_version.local_changes()}
    folder.add_resolved(changes | {"variables": recorded_variables(os.environ)} | nccl_network(folder))
    exit_code = 0 if row["status"] in ("ok", "skipped") else 1
    row = write_row(folder, plan, row)
    append_rows(folder.results, "telemetry", [{"run_id": row["run_id"]} | sample for sample in telemetry])
    return 128 + run_end.signum if run_end.signum else exit_code


def measured_columns(row: dict[str, Any], sampler: Sampler | None) -> dict[str, Any]:
    """row: of the reporting rank, to which energy is added. sampler: None where it ran elsewhere."""
    windows = row.pop("windows", [])
    if windows and sampler:
        row["energy_j_per_image"] = sampler.energy_j_per_image(windows, row)
        row["other_gpu_processes"] = sampler.most_others(row)
    return row


def record_skipped(folder: RunFolder, reason: str, env: Mapping[str, str]) -> int:
    """Append the row of a run that is not started. env: of its launcher."""
    plan = folder.read_plan()
    row = row_at_start(folder, plan, env) | {"status": "skipped", "reason": reason}
    write_row(folder, plan, row, prints=plan["round"] == 1)
    return 0


def record_lost(folder: RunFolder, code: int, signum: int, env: Mapping[str, str]) -> None:
    """Append the row of a run whose launcher ended with `code` and left none. signum: that the suite got, or 0. env: of
    the launcher."""
    processes.end_processes(folder.path, processes.GRACE_S)
    if (read_table(folder.results, "runs").run_id == folder.run_id).any():
        return
    if signum and code < 0:
        why = {"status": "interrupted", "reason": f"{signal.Signals(signum).name} to the suite, before the run began"}
    else:
        ended = f"{signal.Signals(-code).name} ended its record" if code < 0 else f"its launcher ended with code {code}"
        why = {"status": "failed", "reason": f"{ended}; its processes were ended, and nothing is known"}
    plan = folder.read_plan()
    write_row(folder, plan, row_at_start(folder, plan, env) | why, shows_log=False)


def row_at_start(folder: RunFolder, plan: Mapping[str, Any], env: Mapping[str, str]) -> dict:
    """Columns of runs.csv that are known before the run starts. env: of its launcher."""
    ranks, cores, gpus = (int(env.get(name) or 0) for name in ("NPROC", "NUM_CORES", "NUM_GPUS"))
    commit = source_version.commit()
    return {
        "schema": SCHEMA,
        "run_id": folder.run_id,
        "strategy": plan["strategy"],
        "repeat": plan["round"],
        "position": plan["position"] or None,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: plan["requested"].get(name) for name in REQUESTED_COLUMNS},
        "oversubscribed": ranks > cores and not gpus,
        "commit": commit,
        "dirty": bool(source_version.local_changes()) if commit else None,
        "load_average": os.getloadavg()[0],
        "governor": GOVERNOR.read_text() if GOVERNOR.exists() else None,
        "log_path": str(folder.log.relative_to(folder.results)),
        "options": plan["flags"],
    }


def write_row(
    folder: RunFolder, plan: Mapping[str, Any], row: dict, prints: bool = True, shows_log: bool = True
) -> dict:
    """Append the row and its settings, print what became of the run. Returns the row."""
    if plan["round"] == 0:
        why = row.get("reason") or "it warmed the machine, and is not counted"
        row |= {"status": WARM_UP, "reason": why if row["status"] == "ok" else f"{row['status']}: {why}"}
    try:
        row |= {"settings": add_settings(folder.results, plan["requested"], folder.resolved())}
        append_rows(folder.results, "runs", [row])
    finally:  # also on a full disk, where the line is all that is left
        if prints:
            print(result_line(plan, row), flush=True)
        if shows_log and row["status"] not in ("ok", "skipped", WARM_UP) and folder.log.exists():
            print_tail(folder.log)
    return row


def run_command(command: list[str], folder: RunFolder, plan: Mapping[str, Any], sampler: Sampler) -> RunEnd:
    """Run it to its end, its limit or the first ending signal, and leave no process of it."""
    signals: list[int] = []
    for signum in ending_signals():
        signal.signal(signum, lambda number, frame: signals.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ending_signals())  # SignalForwarder blocks SIGINT
    requested = plan["requested"]
    with open(folder.log, "ab") as log, processes.ended_without_us(folder.path):
        log.write(f"$ {shlex.join(command)}\n".encode())
        log.flush()
        num_ranks = int(os.environ.get("NPROC") or 1) * int(os.environ.get("NODES") or 1)  # that the launcher starts
        run_end = RunEnd(0, 0.0, time.monotonic(), limit_s=requested.get("limit_s", 0.0), num_ranks=num_ranks)
        child = start_command(command, folder, requested, log)
        try:
            sampler.start()
            wait_for_end(child, folder, plan, run_end, signals, log)
            if child.poll() and not signals and "SLURM_JOB_ID" in os.environ:
                time.sleep(LEEWAY_S)  # Slurm signals all processes of a job, and this one may get its signal last
            if signals and child.poll() != 0:
                run_end.signum = signals[0]
            elif child.poll() is None:
                run_end.timed_out = True
                processes.write_stacks(folder.path, log)
        finally:
            run_end.wall_s = time.monotonic() - run_end.began
            # that ranks have to end the open window and to write a checkpoint
            run_end.grace_s = requested["timeout_s"] if requested.get("checkpoint_dir") else 0.0
            grace_s = (run_end.grace_s or processes.GRACE_S) if child.poll() is None else 0.0
            processes.end_processes(folder.path, grace_s)
            try:
                run_end.exit_code = child.wait(processes.GRACE_S)
            except subprocess.TimeoutExpired:  # the kernel holds it, as a hung file system does: leave it
                run_end.exit_code = -signal.SIGKILL
    if run_end.signum:
        run_end.wall_s = time.monotonic() - run_end.began
    return run_end


def start_command(command: list[str], folder: RunFolder, requested: dict, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a session of its own; it dies with this process. NCCL notes what it sends by between nodes."""
    env = {RUN_DIR_VARIABLE: str(folder.path), "PYTHONUNBUFFERED": "1"}
    if requested["nodes"] > 1 and "NCCL_DEBUG" not in os.environ:
        env |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": f"{folder.path}/nccl-%h-%p.log"}
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


def wait_for_end(
    child: subprocess.Popen[bytes],
    folder: RunFolder,
    plan: Mapping[str, Any],
    run_end: RunEnd,
    signals: list[int],
    log: IO[bytes],
) -> None:
    """Until the child's end, a signal or the limit. The stacks of ranks that hang are written before torchrun kills
    them."""
    limit_s = run_end.limit_s
    notes: list[dict[str, Any]] = []
    name = f"{plan['number']} {plan['name']} #{plan['round']}".strip()
    with tqdm(desc=name, unit="step", disable=None, leave=False, dynamic_ncols=True, mininterval=0.2) as bar:
        while child.poll() is None and not signals and not (limit_s and time.monotonic() - run_end.began > limit_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            if not notes and (notes := folder.causes()) and timed_out(notes[0]["reason"]):
                processes.write_stacks(folder.path, log)
            if not bar.disable and (progress := folder.progress()):
                done, bar.total = progress
                bar.update(done - bar.n)
            bar.refresh()


def nccl_network(folder: RunFolder) -> dict[str, str]:
    """{"network": "IB"}, "Socket" or a plugin's name: what NCCL sends by between nodes; {} where it has not said."""
    for path in sorted(folder.path.glob("nccl-*.log")):
        if found := re.search(r"Using network (.+)", path.read_text(errors="replace")):
            return {"network": found[1].strip()}
    return {}


def result_line(plan: Mapping[str, Any], row: dict) -> str:
    seconds = f"{row['wall_s']:7.1f} s" if "wall_s" in row else " " * 9
    head = f"{plan['number']:>7} {plan['name']:<22} #{plan['round']}  {row['status']:<11} {seconds}"
    if row["status"] != "ok":
        return f"{head}  {printable(row['reason'])}"
    rate = f"{row['images_per_s']:9.1f} images/s" if row.get("images_per_s") else ""
    return f"{head}  {rate}" + (f"  top-1 {row['acc1']:.1f} %" if row.get("acc1") is not None else "")


def print_tail(log: Path) -> None:
    lines = log.read_bytes().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    shown = (f"        | {printable(line[:160])}" for line in lines)  # without what steers a terminal
    print(f"        last lines of {log}:", *shown, sep="\n", file=sys.stderr)


def run_command_line(words: list[str]) -> int:
    _, path, *rest = words
    folder = RunFolder(Path(path).absolute().parent)  # `logs` may be a link: the set is where it was named
    try:
        if rest[0] == "--skip":
            return record_skipped(folder, rest[1], os.environ)
        with hold_lock(folder.plan):  # while it is held, make clean keeps the set
            return main(folder, rest[1:])
    except OSError as error:  # such as a full disk under the log
        place = error.filename or "the run"
        print(f"error: {place}: {error.strerror}; free space, or choose another --results", file=sys.stderr)
        return 1


if __name__ == "__main__":
    run_main_and_exit(lambda: run_command_line(sys.argv[1:]))
