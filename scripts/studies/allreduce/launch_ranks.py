"""How studies start ranks on this machine, as launchers/lib.sh does for strategies: nothing listens beyond loopback."""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.shared.forward_signals import die_with_parent
from scripts.shared.repository import ROOT


def rank_environment(threads: int) -> dict[str, str]:
    """Of every rank. ./bench has cleared the variables of other launches (scripts/runner/variables.py)."""
    thread_counts = {"OMP_NUM_THREADS": str(threads), "THREADS_PER_RANK": str(threads)}
    return os.environ | thread_counts | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def torchrun_command(num_ranks: int, folder: str | Path) -> tuple[list[str], dict[str, str]]:
    """(the words before a rank's program, variables besides `rank_environment`). folder: a new one, for file
    stores."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    words += ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", f"{folder}/torchrun"]
    words += ["--local-addr", "127.0.0.1", "--log-dir", os.devnull]  # without it a folder stays in /tmp
    return words, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "RENDEZVOUS_FILE": f"{folder}/ranks"}


def run_ranks(program: list[str], num_ranks: int, folder: Path) -> str:
    """What they print. folder: a new one, in which they run. Raises UserError where they fail."""
    folder.mkdir()
    start, variables = torchrun_command(num_ranks, folder)
    env = rank_environment(machine.threads_per_rank(num_ranks)) | variables
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH")]))
    done = subprocess.run(
        [*start, *program], cwd=folder, env=env, capture_output=True, text=True, preexec_fn=die_with_parent()
    )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("error: ")] or [done.stderr[-2000:]]
        raise UserError(f"{' '.join(program[:2])} did not get to its end: {said[0].removeprefix('error: ')}")
    return done.stdout


def horovodrun_command(num_ranks: int) -> list[str]:
    """Before a rank's interpreter. scripts/setup/horovod.sh makes its server listen on the ranks' interface only."""
    words = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "--disable-cache", "-np", str(num_ranks)]
    return [*words, "-H", f"localhost:{num_ranks}"]
