"""How studies start ranks on this machine, so that nothing listens beyond loopback.

launchers/lib.sh does the same for strategies. torchrun's standalone mode would open two stores on all interfaces.
"""

import os
import sys
from pathlib import Path


def rank_environment(threads: int) -> dict[str, str]:
    """The variables of every rank: its threads, and loopback as the one interface on which ranks talk. ./bench has
    cleared those of other launches (scripts/runner/variables.py)."""
    thread_counts = {"OMP_NUM_THREADS": str(threads), "THREADS_PER_RANK": str(threads)}
    return os.environ | thread_counts | {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}


def torchrun_command(num_ranks: int, folder: str | Path) -> tuple[list[str], dict[str, str]]:
    """(the words before a rank's program, variables besides `rank_environment`). folder: a new one, for the stores of
    torchrun and of the ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(num_ranks)]
    words += ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file", "--rdzv-endpoint", f"{folder}/torchrun"]
    words += ["--local-addr", "127.0.0.1", "--log-dir", os.devnull]  # without it a folder stays in /tmp
    return words, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "RENDEZVOUS_FILE": f"{folder}/ranks"}


def horovodrun_command(num_ranks: int) -> list[str]:
    """The words before a rank's interpreter and program. scripts/setup/horovod.sh makes horovodrun's server
    listen on the ranks' interface only."""
    words = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "--disable-cache", "-np", str(num_ranks)]
    return [*words, "-H", f"localhost:{num_ranks}"]
