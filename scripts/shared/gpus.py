"""GPUs before a rank runs on them."""

import contextlib
import os

from benchmarks.common import machine
from benchmarks.common.errors import UserError

NEWEST_CAPABILITY = (9, 0)
"""Of GPUs that are not at hand, such as those of a cluster's nodes."""


def min_compute_capability() -> tuple[int, int] | None:
    """None without GPUs."""
    if not machine.num_gpus():
        return None
    return min(((gpu.major, gpu.minor) for gpu in _visible_gpus()), default=NEWEST_CAPABILITY)


def gpu_memory_bytes(num_used: int) -> float | None:
    """Of the smallest of the first num_used GPUs: GPU_MEMORY_GB, else as torch says; None where nobody knows."""
    if not machine.num_gpus():
        return None
    if text := os.environ.get("GPU_MEMORY_GB", ""):
        with contextlib.suppress(ValueError):
            if 0 < float(text) < float("inf"):
                return float(text) * 1e9
        raise UserError(f"GPU_MEMORY_GB is {text!r}, but must be 10^9 bytes, such as 16.9 for a V100 of 16 GB")
    return min((gpu.total_memory for gpu in _visible_gpus()[:num_used]), default=None)


def _visible_gpus() -> list:
    """torch's properties, which make no CUDA context."""
    with contextlib.suppress(UserError):
        if num_visible := machine.usable_gpus():
            import torch

            return [torch.cuda.get_device_properties(index) for index in range(num_visible)]
    return []
