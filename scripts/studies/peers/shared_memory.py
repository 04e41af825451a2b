"""Whether /dev/shm holds the batches that torch's own DataLoaders pass through it: those of the bare loop and of the
peers. Where it is full, a worker ends by SIGBUS. The suite's loaders do not use it. Needs no torch."""

import shutil
from pathlib import Path

from benchmarks.common.config.config import Config
from benchmarks.common.system import machine

SHARED_MEMORY = Path("/dev/shm")
PREFETCHED_PER_WORKER = 2  # DataLoader's default


def why_too_little_shared_memory(config: Config, num_bytes_per_value: int, on_gpu: bool) -> str:
    """Why the batches of all ranks do not fit, with the remedy; '' where they do, or no worker makes any.

    config: with its global batch resolved. num_bytes_per_value: 4 where workers normalise images, else 1.
    """
    num_workers = machine.resolve_num_workers(config.workers, on_gpu)
    if not num_workers or not SHARED_MEMORY.is_dir():
        return ""
    batch_bytes = num_bytes_per_value * config.global_batch * 3 * config.image_size**2
    needed, free = num_workers * PREFETCHED_PER_WORKER * batch_bytes, shutil.disk_usage(SHARED_MEMORY).free
    if needed <= free:
        return ""
    return (
        f"its loader workers may keep {needed / 1e9:.1f} GB of batches in {SHARED_MEMORY}, where {free / 1e9:.1f} GB "
        "are free; enlarge it (docker run --shm-size), or lower --workers"
    )
