"""The most TFLOP/s that this device was seen to compute: the fastest of some matrix products and convolutions.

scripts/results/device_use.py takes it as the peak of a device of which no data sheet is known.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.common.config import Precision, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import usable_gpus
from benchmarks.common.rank import device_name, synchronize

NUM_PASSES = 3
MEASURE_S = 0.07  # for each operation and precision, in each pass
KINDS: dict[Precision, tuple[torch.dtype, bool]] = {  # type, and whether products of float32 may be TF32
    "fp32": (torch.float32, False),
    "bf16": (torch.bfloat16, False),
    "tf32": (torch.float32, True),
    "fp16": (torch.float16, False),
}


def measure_peak() -> dict:
    """TFLOP/s of the best of many products and convolutions on device 0, or on the CPU with a rank's threads.

    Returns device_name, threads, tflops by precision, and the tflops of each pass, which tell their spread.
    """
    cuda = usable_gpus() > 0  # none with DEVICE=cpu
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    before = torch.get_num_threads()
    threads = int(os.environ.get("THREADS_PER_RANK") or before)
    capability = torch.cuda.get_device_capability(device) if cuda else None
    passes: list[dict[str, float]] = [{} for _ in range(NUM_PASSES)]
    torch.set_num_threads(threads)
    for kind, (dtype, tf32) in KINDS.items():
        if not _can_compute(kind, capability):
            continue
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        operations = [*_peak_operations(dtype, device)]
        for found in passes:
            found[kind] = max(_tflops(flops, work) for flops, work in operations)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(before)
    tflops = {kind: max(found[kind] for found in passes) for kind in passes[0]}
    known = {"device_name": device_name(device), "threads": None if cuda else threads}
    return known | {"tflops": tflops, "passes": passes}


def _can_compute(precision: Precision, capability: tuple[int, int] | None) -> bool:
    """Whether some strategy computes in it here."""
    try:
        return resolve_precision(precision, capability, mixed=precision == "fp16") == precision
    except UserError:
        return False


def _peak_operations(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, Callable[[], object]]]:
    """(FLOPs, the work): products of n x n matrices, 2 n^3 FLOPs, and convolutions as in the middle of a ResNet."""

    def done(work: Callable[..., object], *operands: Any) -> Callable[[], object]:
        def run() -> None:
            work(*operands)
            synchronize(device)

        return run

    for n in (8192,) if device.type == "cuda" else (512, 1024):
        yield 2.0 * n**3, done(torch.matmul, *(torch.randn(n, n, device=device).to(dtype) for _ in range(2)))
    images, size = (256, 28) if device.type == "cuda" else (16, 14)
    channels = 256
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(images, channels, size, size, device=device).to(dtype, memory_format=memory_format)
        weight = torch.randn(channels, channels, 3, 3, device=device).to(dtype, memory_format=memory_format)
        flops = 2.0 * images * (size - 2) ** 2 * channels**2 * 9  # no padding: every product counts
        yield flops, done(torch.nn.functional.conv2d, x, weight)


def _tflops(flops: float, work: Callable[[], object]) -> float:
    work()  # libraries load and choose their kernels
    fastest_s, until = float("inf"), time.perf_counter() + MEASURE_S
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return flops / fastest_s / 1e12
