"""One attempt at a strategy: start it, time it, watch it, end whatever is left of it, and write its row.

    python -m scripts.suite.attempt --strategy ddp --results results/x --repeat 1 -- torchrun ... -m benchmarks.ddp ...
    python -m scripts.suite.attempt --strategy slurm --results results/x --repeat 1 --skip "no cluster; see README"

Launchers call it. Exit code: 0 ok or skipped, 1 failed, timeout or invalid, 130 or 143 interrupted.
"""

import contextlib
import ctypes
import dataclasses
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import tyro
from tqdm import tqdm

from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.outcome import boot_id, timed_out
from benchmarks.common.results import SCHEMA, append_rows
from benchmarks.common.run_folder import RunFolder
from scripts.suite import processes
from scripts.suite.telemetry import Sampler
from scripts.suite.verdict import first_cause

POLL_S, GRACE_S, LOG_TAIL_LINES = 0.1, 5.0, 12
PR_SET_PDEATHSIG = 1
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Options:
    strategy: str
    results: Path
    repeat: int = 1
    skip: str = ""
    """Do not run; record why."""
    timeout_s: float | None = None
    """Seconds before the run is ended; default: the configuration's limit_s. 0: no limit."""
    label: str = ""
    """Printed before the result, such as 3/15."""


@dataclasses.dataclass
class Ended:
    """How a run came to its end, before anybody asked why."""

    exit_code: int
    wall_s: float
    began: float
    timed_out_after_s: float = 0.0
    stopped: list[str] | None = None
    signum: int = 0


def main(options: Options, command: list[str]) -> int:
    run_dir = make_run_dir(options)
    config = load_config(flags_of(command)) if command else Config()
    row = known_before(options, config, run_dir)
    if options.skip:
        row |= {"status": "skipped", "reason": options.skip}
        append_rows(options.results, "runs", [row])
        print(line_of(options, row))
        return 0
    sampler = Sampler()
    limit_s = config.limit_s if options.timeout_s is None else options.timeout_s
    # a checkpoint may wait for the other ranks
    grace_s = max(GRACE_S, config.timeout_s) if config.checkpoint_dir else GRACE_S
    ended = watch(command, run_dir, limit_s, grace_s, sampler, options)
    telemetry = sampler.stop()
    row |= {"exit_code": ended.exit_code, "wall_s": ended.wall_s}
    row |= judge(ended, run_dir, limit_s, sampler)
    if row["status"] == "ok" and "images_per_s" not in row:
        print(f"{options.strategy} #{options.repeat} is done; the first node has its row")
        return 0
    print(line_of(options, row))  # before the rows: it is all that is left where the disk is full
    if row["status"] not in ("ok", "skipped"):
        print_tail(run_dir / "run.log")
    run_id = {"run_id": row["run_id"]}
    append_rows(options.results, "runs", [row])
    append_rows(options.results, "telemetry", [run_id | sample for sample in telemetry])
    append_rows(options.results, "wall", [run_id | part for part in wall_account(ended, run_dir)])
    if ended.signum:
        return 128 + ended.signum
    return 0 if row["status"] in ("ok", "skipped") else 1


def flags_of(command: list[str]) -> list[str]:
    """The configuration flags in a launch command: what follows `-m benchmarks.<script>`."""
    module = next(
        n for n, word in enumerate(command) if n and command[n - 1] == "-m" and word.startswith("benchmarks.")
    )
    return command[module + 1 :]


def make_run_dir(options: Options) -> Path:
    """A new folder logs/<run_id> in the result set; its name is the run_id."""
    now = datetime.datetime.now().strftime("%H%M%S")
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        run_dir = (options.results / "logs" / f"{options.strategy}-{options.repeat}-{now}{suffix}").resolve()
        with contextlib.suppress(FileExistsError):
            run_dir.mkdir(parents=True)
            return run_dir
    raise AssertionError("a thousand runs in one second")


def known_before(options: Options, config: Config, run_dir: Path) -> dict:
    """What the row holds whatever becomes of the run."""
    num_cores = int(os.environ.get("NUM_CORES") or len(os.sched_getaffinity(0)))
    commit, changed = git("rev-parse", "--short=12", "HEAD"), git("status", "--porcelain")
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "schema": SCHEMA,
        "run_id": run_dir.name,
        "strategy": options.strategy,
        "repeat": options.repeat,
        "started_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": config.config,
        "arch": config.arch,
        "image_size": config.image_size,
        "global_batch": config.global_batch,
        "precision": config.precision,
        "memory_format": config.memory_format,
        "loader": config.loader,
        "oversubscribed": num_ranks() > num_cores and not int(os.environ.get("NUM_GPUS") or 0),
        "commit": commit,
        "dirty": bool(changed) if commit else None,
        "options": os.environ.get("ARGS", ""),
        "load_average": os.getloadavg()[0],
        "governor": governor.read_text() if governor.exists() else None,
        "log_path": str((run_dir / "run.log").relative_to(options.results.resolve())),
    }


def num_ranks() -> int:
    """The ranks that the launcher asked for."""
    return int(os.environ.get("NPROC") or 1)


def git(*args: str) -> str | None:
    """Output of a git command in the project, or None outside a checkout."""
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def watch(
    command: list[str], run_dir: Path, limit_s: float, grace_s: float, sampler: Sampler, options: Options
) -> Ended:
    """Run `command` to its end, to the limit, or to the first SIGINT, SIGTERM or SIGHUP; leave no process of it."""
    asked: list[int] = []
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:  # ignored: by nohup
            signal.signal(signum, lambda number, frame: asked.append(number))
    environment = os.environ | {"RUN_DIR": str(run_dir), "PYTHONUNBUFFERED": "1"}
    with open(run_dir / "run.log", "ab") as log:  # a batch job appends to it too
        log.write(f"$ {' '.join(command)}\n".encode())
        log.flush()
        began = time.monotonic()
        ended = Ended(0, 0.0, began)
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            sampler.start()
            follow(child, run_dir, options, ended, limit_s, asked, log)
            if child.poll() is None:
                if asked:
                    ended.signum = asked[0]
                else:
                    ended.timed_out_after_s = time.monotonic() - began
                    ended.stopped = processes.wake_stopped(run_dir)
                    processes.write_stacks(run_dir, log)
        finally:
            ended.wall_s = time.monotonic() - began
            processes.end_all(run_dir, grace_s if child.poll() is None else 0.0)
            try:
                ended.exit_code = child.wait(GRACE_S)
            except subprocess.TimeoutExpired:  # the kernel holds it, as a hung file system does: leave it
                ended.exit_code = -signal.SIGKILL
    if ended.signum:
        ended.wall_s = time.monotonic() - began
    return ended


def die_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent dies, be it by SIGKILL (prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def follow(
    child: subprocess.Popen, run_dir: Path, options: Options, ended: Ended, limit_s: float, asked: list[int], log
) -> None:
    """Wait for the child, with a bar on a terminal, until it ends, a signal was `asked` or `limit_s` have passed.

    While a batch job is queued the limit does not run. When the first rank leaves a note, look for ranks that
    hang: torchrun would wait 30 s for them, then kill them. Where it waited for one in vain, write all stacks.
    """
    progress, queued, limit_from = run_dir / "progress", run_dir / "queued", time.monotonic()
    name = f"{options.label} {options.strategy} #{options.repeat}".strip()
    with tqdm(desc=name, unit="step", disable=None, leave=False, dynamic_ncols=True, mininterval=0.2) as bar:
        while child.poll() is None and not asked and not (limit_s and time.monotonic() - limit_from > limit_s):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(POLL_S)
            if queued.exists():
                limit_from = time.monotonic()
            if ended.stopped is None and (notes := RunFolder(run_dir).notes()):
                ended.stopped = processes.wake_stopped(run_dir)
                if timed_out(notes[0]["reason"]):
                    processes.write_stacks(run_dir, log)
            with contextlib.suppress(OSError, ValueError):
                if not bar.disable:
                    done, bar.total = (int(word) for word in progress.read_text().split())
                    bar.update(done - bar.n)
            bar.refresh()


def judge(ended: Ended, run_dir: Path, limit_s: float, sampler: Sampler) -> dict:
    """The status, its reason, and what the run measured: nothing on nodes but the first."""
    summary = run_dir / "summary.json"
    measured = {}
    if summary.exists():
        told = json.loads(summary.read_text())
        measured = told["row"]
        if windows := measured.pop("windows", []):
            from scripts.analysis.stats import run_interval  # scipy, which nothing needs while the run is timed

            interval = run_interval([(images, seconds) for images, seconds, _ in windows])
            measured |= {"images_per_s_ci_low": interval.low, "images_per_s_ci_high": interval.high}
            if told["wall"]["boot_id"] == boot_id():  # else another node's clock and power
                measured["energy_j_per_image"] = sampler.energy_j_per_image(windows, measured)
    if ended.signum:
        return {"status": "interrupted", "reason": f"{signal.Signals(ended.signum).name} to the launcher"}
    if ended.timed_out_after_s:
        hung = f"; {' and '.join(ended.stopped)} was stopped by a signal" if ended.stopped else ""
        reason = f"not done after {limit_s:g} s{hung}; the stacks are in the log; raise TIMEOUT if it only is slow"
        return {"status": "timeout", "reason": reason}
    if ended.exit_code == 0 and (measured or os.environ.get("NODE_RANK", "0") != "0"):
        return measured | {"status": "ok"}
    log = (run_dir / "run.log").read_bytes().decode(errors="replace")
    status, reason = first_cause(RunFolder(run_dir).notes(), log, ended.exit_code, ended.stopped or [], num_ranks())
    return {"status": status, "reason": reason}


def wall_account(ended: Ended, run_dir: Path) -> list[dict]:
    """The wall clock of a finished run in named parts, which sum to wall_s."""
    summary = run_dir / "summary.json"
    if not summary.exists():
        return []
    wall = json.loads(summary.read_text())["wall"]
    if wall["boot_id"] != boot_id():  # another node's clock
        parts = {"queue, start and shutdown": ended.wall_s - sum(wall["parts"].values())} | wall["parts"]
    else:
        parts = {"launcher and start of processes": wall["started_at"] - ended.began}
        parts |= wall["parts"] | {"shutdown": ended.began + ended.wall_s - wall["ended_at"]}
    return [{"part": part, "seconds": seconds} for part, seconds in parts.items()]


def line_of(options: Options, row: dict) -> str:
    """The one line that a run leaves on the terminal."""
    seconds = f"{row['wall_s']:7.1f} s" if "wall_s" in row else " " * 9
    head = f"{options.label:>7} {options.strategy:<18} #{options.repeat}  {row['status']:<11} {seconds}"
    if row["status"] != "ok":
        return f"{head}  {row['reason']}"
    rate = f"{row['images_per_s']:9.1f} images/s" if row.get("images_per_s") else ""
    return f"{head}  {rate}" + (f"  top-1 {row['acc1']:.1f} %" if row.get("acc1") is not None else "")


def print_tail(log: Path) -> None:
    lines = log.read_bytes().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    print(f"        last lines of {log}:", *(f"        | {line[:160]}" for line in lines), sep="\n", file=sys.stderr)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        sys.exit(main(tyro.cli(Options, args=arguments[:split]), arguments[split + 1 :]))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # such as a full disk under the log
        print(
            f"error: {error.filename or 'the run'}: {error.strerror}; free space, or choose another RESULTS=",
            file=sys.stderr,
        )
        sys.exit(1)
