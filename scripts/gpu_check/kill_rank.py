"""Starts a launcher, and once its run trains kills the last of its ranks. The exit code is the launcher's.

ARGS="--loader synthetic --steps 100000 --window-steps 5" python -m scripts.gpu_check.kill_rank launchers/ddp.sh
"""

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import tyro

from benchmarks.common.run_folder import RUN_DIR_VARIABLE, RunFolder
from scripts.shared.forward_signals import die_with_parent

POLL_S = 0.1


def main(launcher: Path, /) -> int:
    child = subprocess.Popen([launcher], preexec_fn=die_with_parent())
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    with contextlib.suppress(KeyboardInterrupt):
        while child.poll() is None:
            time.sleep(POLL_S)
            if ranks := training_ranks(psutil.Process(child.pid)):
                print(f"killing rank {max(ranks)}", flush=True)
                ranks[max(ranks)].kill()
                break
    return child.wait()


def training_ranks(launcher: psutil.Process) -> dict[int, psutil.Process]:
    """By their rank, once the run has made some steps."""
    found = {}
    with contextlib.suppress(psutil.Error):
        for process in launcher.children(recursive=True):
            with contextlib.suppress(psutil.Error, OSError):
                variables = process.environ()
                run_dir = variables.get(RUN_DIR_VARIABLE)
                if "RANK" in variables and run_dir and RunFolder(run_dir).progress():
                    found[int(variables["RANK"])] = process
    return found


if __name__ == "__main__":
    sys.exit(tyro.cli(main, description=__doc__))
