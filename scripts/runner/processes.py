"""The processes of a run, found by RUN_DIR in their environment, and how to end them all.

python -m scripts.runner.processes RUN_DIR      # waits for the end of stdin, which is that of the run's record
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import psutil

from scripts.shared.repository import ROOT

GRACE_S = 5.0  # between TERM and KILL, where ranks write no checkpoint
POLL_S, STACK_WAIT_S, STACKS_LIMIT_S = 0.1, 0.3, 30.0
STEPS_LIMIT_S, ANSWER_LIMIT_S = 3.0, 20.0  # a job that is cancelled has little time, and a row to write


@contextlib.contextmanager
def ended_without_us(run_dir: Path) -> Iterator[None]:
    """If this process is killed meanwhile, another one, which inherits the set's lock, ends what is left."""
    watcher = subprocess.Popen(
        [sys.executable, "-m", "scripts.runner.processes", str(run_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        close_fds=False,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watcher.terminate()
        watcher.wait()


def main(run_dir: Path) -> None:
    sys.stdin.read()
    end_processes(run_dir, GRACE_S)


def processes_of_run(run_dir: Path) -> list[psutil.Process]:
    """Those alive, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("RUN_DIR") == str(run_dir):
                found.append(process)
    return found


def end_processes(run_dir: Path, grace_s: float) -> None:
    """End every process of the run, its Slurm steps, and the folder by which its ranks met: by TERM, and after grace_s
    by KILL."""
    found, deadline = processes_of_run(run_dir), time.monotonic() + grace_s
    sruns: list[psutil.Process] = []
    ranks: list[psutil.Process] = []
    for process in found:
        with contextlib.suppress(psutil.Error, OSError):
            if process.name() == "srun":  # it would kill its tasks at once
                sruns.append(process)
            elif {"RANK", "HOROVOD_RANK"} & process.environ().keys():
                ranks.append(process)
    # To ranks alone, where they have time for a checkpoint: after a TERM of its own torchrun kills them in 30 s, and
    # horovodrun in 5 s.
    for process in (ranks if grace_s else []) or [each for each in found if each not in sruns] or found:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)  # a stopped process would keep the TERM for later
            process.terminate()
    # not by psutil's wait, which would reap our own child, and its exit code with it
    while processes_of_run(run_dir) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for _ in range(50):
        alive = processes_of_run(run_dir)
        if not alive:
            break
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(POLL_S)
    cancel_slurm_steps(run_dir)
    rendezvous = run_dir / "rendezvous"  # of launchers/lib.sh
    shutil.rmtree(rendezvous.resolve(), ignore_errors=True)
    if rendezvous.is_symlink():
        rendezvous.unlink()


def cancel_slurm_steps(run_dir: Path) -> None:
    """A killed srun leaves its tasks on other nodes. Steps of a run have its name (launchers/lib.sh)."""
    job, deadline = os.environ.get("SLURM_JOB_ID"), time.monotonic() + STEPS_LIMIT_S
    while job and time.monotonic() < deadline:
        said = answer("squeue", "--noheader", "--steps", "--jobs", job, "--format", "%i %j")
        left = [words[0] for line in said.splitlines() if (words := line.split(maxsplit=1))[1:] == [run_dir.name]]
        if not left:
            break
        answer("scancel", *left)
        time.sleep(POLL_S)


def answer(*command: str) -> str:
    """What a command of Slurm prints; '' where it is not here or does not answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_LIMIT_S).stdout
    return ""


def write_stacks(run_dir: Path, log: IO[bytes]) -> None:
    """Of Python in all of the run's processes, by SIGUSR2 (exits.run_and_exit)."""
    deadline = time.monotonic() + STACKS_LIMIT_S
    for process in processes_of_run(run_dir):
        if time.monotonic() > deadline:
            break
        with contextlib.suppress(psutil.Error, OSError):
            log.write(f"\n--- stack of pid {process.pid}: {' '.join(process.cmdline())[:150]}\n".encode())
            log.flush()
            if _handles_sigusr2(process.pid):
                process.send_signal(signal.SIGUSR2)
                time.sleep(STACK_WAIT_S)  # or the stacks would be written into each other


def _handles_sigusr2(pid: int) -> bool:
    """Another process would be killed by it."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
