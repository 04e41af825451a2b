"""Every process of a run, whoever its parent is by now, and how to end them all.

A run marks its processes by RUN_DIR in their environment: torchrun's workers live in sessions of their own and
outlive a killed torchrun, so neither the process group nor the parent finds them.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil

STACK_WAIT_S = 2.0


def of_run(run_dir: Path) -> list[psutil.Process]:
    """The living processes that carry RUN_DIR=run_dir, without this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("RUN_DIR") == str(run_dir):
                found.append(process)
    return found


def end_all(run_dir: Path, grace_s: float) -> int:
    """TERM to every process of the run, KILL to those alive after `grace_s`; returns how many were found.

    Repeats until none is left: a process may start another while it is being ended.
    """
    first = of_run(run_dir)
    for process in first:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGCONT)  # a stopped process would keep the TERM for later
            process.terminate()
    if first and grace_s:
        psutil.wait_procs(first, timeout=grace_s)
    for _ in range(50):
        alive = of_run(run_dir)
        if not alive:
            break
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(alive, timeout=0.2)
    return len(first)


def write_stacks(run_dir: Path, log) -> list[int]:
    """Append the Python stacks of the run's processes to `log` (a binary file); returns the pids that hang stopped.

    py-spy where it is installed, since it reads a process that cannot answer; else the processes' own
    faulthandler, which outcome.guarded registered for SIGUSR2.
    """
    processes = of_run(run_dir)
    stopped = [process.pid for process in processes if process.status() == psutil.STATUS_STOPPED]
    py_spy = shutil.which("py-spy")
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError, subprocess.SubprocessError):
            log.write(f"\n--- stack of pid {process.pid}: {' '.join(process.cmdline())[:150]}\n".encode())
            log.flush()
            if py_spy:
                subprocess.run([py_spy, "dump", "--pid", str(process.pid)], stdout=log, stderr=log, timeout=10)
            elif _answers_usr2(process.pid):
                process.send_signal(signal.SIGUSR2)
    if not py_spy:
        time.sleep(STACK_WAIT_S)
    return stopped


def _answers_usr2(pid: int) -> bool:
    """Whether the process catches SIGUSR2; sent to another, it would kill it before the others are read."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signal.SIGUSR2 - 1) & 1)
    return False
