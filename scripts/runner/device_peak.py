"""The most TFLOP/s that this device was seen to compute, for devices of which no data sheet is known."""

import os
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.common.config import Precision, resolve_precision
from benchmarks.common.errors import UserError
from benchmarks.common.machine import usable_gpus
from benchmarks.common.rank import device_name, synchronize

MEASURE_S = 0.2  # for each operation and precision
TYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "fp16": torch.float16,
}


def measure_peak() -> dict:
    """device_name, threads, and tflops by precision, of device 0, or of the CPU with a rank's threads."""
    cuda = usable_gpus() > 0  # none with DEVICE=cpu
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    before = torch.get_num_threads()
    threads = int(os.environ.get("THREADS_PER_RANK") or before)
    capability = torch.cuda.get_device_capability(device) if cuda else None
    torch.set_num_threads(threads)
    tflops: dict[str, float] = {}
    for precision, dtype in TYPES.items():
        if _can_compute(precision, capability):
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
            tflops[precision] = max(_tflops(flops, work, device) for flops, work in _operations(dtype, device))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(before)
    return {"device_name": device_name(device), "threads": None if cuda else threads, "tflops": tflops}


def _can_compute(precision: Precision, capability: tuple[int, int] | None) -> bool:
    """Whether some strategy computes in it here."""
    try:
        return resolve_precision(precision, capability, mixed=precision == "fp16") == precision
    except UserError:
        return False


def _operations(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[float, Callable[[], object]]]:
    """(FLOPs, the work): a product of n x n matrices, 2 n^3 FLOPs, and convolutions as in the middle of a ResNet."""
    n, images, size = (8192, 256, 28) if device.type == "cuda" else (1024, 16, 14)
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    yield 2.0 * n**3, lambda: torch.matmul(a, b)
    channels = 256
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(images, channels, size, size, device=device).to(dtype, memory_format=layout)
        weight = torch.randn(channels, channels, 3, 3, device=device).to(dtype, memory_format=layout)
        flops = 2.0 * images * (size - 2) ** 2 * channels**2 * 9  # no padding: every product counts
        yield flops, lambda x=x, weight=weight: torch.nn.functional.conv2d(x, weight)  # type: ignore[misc]


def _tflops(flops: float, work: Callable[[], object], device: torch.device) -> float:
    work()  # libraries load and choose their kernels
    synchronize(device)
    fastest_s, until = float("inf"), time.perf_counter() + MEASURE_S
    while time.perf_counter() < until:
        began = time.perf_counter()
        work()
        synchronize(device)
        fastest_s = min(fastest_s, time.perf_counter() - began)
    return flops / fastest_s / 1e12
