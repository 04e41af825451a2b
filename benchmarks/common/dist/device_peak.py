"""The most TFLOP/s that this device was seen to compute: the fastest of some matrix products and convolutions.

    from benchmarks.common.dist.device_peak import measure_peak

scripts/sets/device_use.py takes it as the peak of a device of which no data sheet is known.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.common.dist.devices import device_name, synchronize

NUM_PASSES = 3
MEASURE_S = 0.07  # for each operation and precision, in each pass


def measure_peak() -> dict:
    """TFLOP/s of the best of many products and convolutions on device 0, or on the CPU with a rank's threads.

    Returns device_name, threads and tflops by precision, and the tflops of each pass, which tell their spread.
    """
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    before = torch.get_num_threads()
    threads = int(os.environ.get("THREADS_PER_RANK") or before)
    kinds = {"fp32": (torch.float32, False), "bf16": (torch.bfloat16, False)}
    if cuda:
        kinds |= {"tf32": (torch.float32, True), "fp16": (torch.float16, False)}
    passes: list[dict[str, float]] = [{} for _ in range(NUM_PASSES)]
    torch.set_num_threads(threads)
    for kind, (dtype, tf32) in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        operations = [*_peak_operations(dtype, device)]
        for found in passes:
            found[kind] = max(_tflops(flops, work) for flops, work in operations)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(before)
    tflops = {kind: max(found[kind] for found in passes) for kind in kinds}
    known = {"device_name": device_name(device), "threads": None if cuda else threads}
    return known | {"tflops": tflops, "passes": passes}


def _peak_operations(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, Callable[[], object]]]:
    """(FLOPs, the work): products of n x n matrices, 2 n^3 FLOPs, and convolutions as in the middle of a ResNet.

    Small ones, on a CPU, fit between two interruptions on a busy machine.
    """
    def done(work: Callable[..., object], *operands: Any) -> Callable[[], object]:
        def run() -> None:
            work(*operands)
            synchronize(device)

        return run

    for n in (8192,) if device.type == "cuda" else (512, 1024):
        yield 2.0 * n**3, done(torch.matmul, *(torch.randn(n, n, device=device).to(dtype) for _ in range(2)))
    images, size = (256, 28) if device.type == "cuda" else (16, 14)
    channels = 256
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(images, channels, size, size, device=device).to(dtype, memory_format=layout)
        weight = torch.randn(channels, channels, 3, 3, device=device).to(dtype, memory_format=layout)
        flops = 2.0 * images * (size - 2) ** 2 * channels**2 * 9  # no padding: every product counts
        yield flops, done(torch.nn.functional.conv2d, x, weight)


def _tflops(flops: float, work: Callable[[], object]) -> float:
    """TFLOP/s of the fastest of MEASURE_S seconds of repetitions."""
    work()  # libraries load and choose their kernels
    fastest_s, until = float("inf"), time.perf_counter() + MEASURE_S
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return flops / fastest_s / 1e12
