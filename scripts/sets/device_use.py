"""How much of the device a training run uses: achieved TFLOP/s, and MFU against the device's peak.

    python -m scripts.sets.device_use --results results/latest              # a line a strategy
    python -m scripts.sets.device_use --results results/latest --measure    # on the machine that made the set

Achieved TFLOP/s = images/s x FLOPs of training on one image (column flops_per_image: convolutions and matrix
products, a multiply-add counted as 2). MFU = achieved / (peak of one device x devices), as defined in
arXiv:2204.02311, appendix B, of the precision in which the run multiplied. No activation is recomputed, so that
HFU equals MFU. Peaks are the vendor's dense figures where they are published; else those of the
fastest matrix product or 3 x 3 convolution on this machine (a library's convolutions can be the quicker ones), which
`--measure` writes to environment.json as measured_peak. On a CPU a rank's threads are the device. Exit code: 1
where no run has FLOPs, 2 for a mistake. Only `--measure` needs torch.
"""

import dataclasses
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

from benchmarks.common.store.results import write_json
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.programs import run_program
from scripts.sets.result_set import Group, load_set

# Dense TFLOP/s of one device, without sparsity, from NVIDIA's data sheets; tensor cores accumulate in fp32. In the
# device's name as torch.cuda.get_device_name returns it, what follows may not turn it into another device.
PUBLISHED_TFLOPS = (
    # V100 data sheet (2020)
    (r"Tesla V100-SXM[23]-\d+GB(-LS)?", {"fp32": 15.7, "fp16": 125.0}),
    (r"Tesla V100-PCIE-\d+GB", {"fp32": 14.0, "fp16": 112.0}),
    # T4 data sheet (2019)
    (r"(Tesla|NVIDIA) T4", {"fp32": 8.1, "fp16": 65.0}),
    # A100 data sheet (2021): SXM4 and PCIe alike
    (
        r"(NVIDIA )?A100-(SXM4|PCIE)-\d+GB|NVIDIA A100 80GB PCIe",
        {"fp32": 19.5, "tf32": 156.0, "fp16": 312.0, "bf16": 312.0},
    ),
    # A10 data sheet (2021)
    (r"NVIDIA A10", {"fp32": 31.2, "tf32": 62.5, "fp16": 125.0, "bf16": 125.0}),
    # H100 data sheet (2022-2023) and the Hopper architecture white paper, table 2; sparse figures halved
    (r"NVIDIA H100 80GB HBM3", {"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4}),
    (r"NVIDIA H100 PCIe", {"fp32": 51.2, "tf32": 378.0, "fp16": 756.0, "bf16": 756.0}),
    # H200 data sheet (2023): the SXM part computes as the H100 SXM does
    (r"NVIDIA H200", {"fp32": 66.9, "tf32": 494.7, "fp16": 989.4, "bf16": 989.4}),
    # L4 and L40S data sheets (2023); sparse figures halved
    (r"NVIDIA L4", {"fp32": 30.3, "tf32": 60.0, "fp16": 121.0, "bf16": 121.0}),
    (r"NVIDIA L40S", {"fp32": 91.6, "tf32": 183.0, "fp16": 362.0, "bf16": 362.0}),
    # Ampere GA102 white paper (2021), appendix A, and Ada white paper (2022), appendix A
    (r"NVIDIA GeForce RTX 3090", {"fp32": 35.6, "tf32": 35.6, "fp16": 71.0, "bf16": 71.0}),
    (r"NVIDIA GeForce RTX 4090", {"fp32": 82.6, "tf32": 82.6, "fp16": 165.2, "bf16": 165.2}),
)
MEASURE_S = 0.2  # for each work and precision


@dataclasses.dataclass(frozen=True)
class Options:
    """How much of the device a training run uses."""

    results: Path = Path("results/latest")
    measure: bool = False
    """Time products and convolutions here and write their TFLOP/s to environment.json first."""


@dataclasses.dataclass(frozen=True)
class DeviceUse:
    """TFLOP/s of a strategy, and as a share of the peak of all its devices; None where the peak is unknown."""

    tflops: float
    peak_tflops: float | None
    mfu: float | None
    peak_from: str
    precision: str
    num_devices: int


def device_use(group: Group, environment: dict) -> DeviceUse | None:
    """Achieved TFLOP/s and MFU of a strategy's ok runs; None without a throughput or FLOPs.

    environment: the set's environment.json, or {}.
    """
    if group.throughput is None or not group.ok.flops_per_image.iloc[0] > 0:
        return None
    row = group.ok.iloc[0]
    tflops = group.throughput.value * row.flops_per_image / 1e12
    peak, peak_from = peak_tflops(row.device_name, row.precision, row.threads_per_rank, environment)
    num_devices = row.world_size if row.world_size > 0 else 1
    if row.device == "cpu":  # ranks that share cores do not add to the peak
        shares = environment.get("num_cores", num_devices) // max(row.threads_per_rank, 1) * max(row.nodes, 1)
        num_devices = min(num_devices, max(shares, 1))
    if peak is None:
        return DeviceUse(tflops, None, None, peak_from, row.precision, int(num_devices))
    return DeviceUse(
        tflops, peak * num_devices, tflops / (peak * num_devices), peak_from, row.precision, int(num_devices)
    )


def why_lower_mfu(uses: Sequence[tuple[str, DeviceUse]]) -> str:
    """A sentence on the fastest where another has a higher MFU; nothing where none has, or a peak is unknown."""
    known = [(use.mfu, label, use) for label, use in uses if use.mfu is not None]
    if not known:
        return ""
    fastest_mfu, fastest, most = max(known, key=lambda entry: entry[2].tflops)
    best_mfu, other, best = max(known, key=lambda entry: entry[0])
    if best_mfu <= fastest_mfu:
        return ""
    less = (
        f"{fastest} computes most a second, {most.tflops:#.3g} TFLOP/s, with an MFU of {100 * fastest_mfu:.1f} %, "
        f"below the {100 * best_mfu:.1f} % of {other}: "
    )
    return less + (
        f"MFU is of the peak of all devices in the precision in use, here {_peak(most)}, there {_peak(best)}. What is "
        "no product (BatchNorm, ReLU, the loader, communication) does not grow faster with it."
    )


def _peak(use: DeviceUse) -> str:
    devices = "1 device" if use.num_devices == 1 else f"{use.num_devices} devices"
    return f"{use.peak_tflops:,.3g} TFLOP/s of {devices} in {use.precision}"


def peak_tflops(
    device_name: str, precision: str, threads_per_rank: float, environment: dict
) -> tuple[float | None, str]:
    """Dense peak of one device in a precision (fp32, tf32, fp16, bf16, apex-O1 ...), and where it is from."""
    kind = precision if not precision.startswith("apex-") else "fp32" if precision == "apex-O0" else "fp16"
    for pattern, peaks in PUBLISHED_TFLOPS:
        if re.fullmatch(pattern, device_name):
            return peaks.get(kind), f"NVIDIA's data sheet, dense {kind}"
    measured = environment.get("measured_peak") or {}
    if measured.get("device_name") != device_name or kind not in measured.get("tflops", {}):
        return None, "not known; on the same machine run: python -m scripts.sets.device_use --measure"
    # a device of another number of threads is taken to be in proportion
    threads = measured.get("threads") or threads_per_rank
    scale = threads_per_rank / threads if threads_per_rank > 0 else 1.0
    return measured["tflops"][kind] * scale, f"the fastest product or convolution measured here, {kind}"


def measure_peak() -> dict:
    """TFLOP/s of the best of many products and convolutions on device 0, or on the CPU with a rank's threads.

    Returns device_name, threads and tflops by precision.
    """
    import torch

    from benchmarks.common.dist.devices import device_name

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", 0) if cuda else torch.device("cpu")
    before = torch.get_num_threads()
    threads = int(os.environ.get("THREADS_PER_RANK") or before)
    kinds = {"fp32": (torch.float32, False), "bf16": (torch.bfloat16, False)}
    if cuda:
        kinds |= {"tf32": (torch.float32, True), "fp16": (torch.float16, False)}
    tflops = {}
    torch.set_num_threads(threads)
    for kind, (dtype, tf32) in kinds.items():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        tflops[kind] = max(_tflops(flops, work) for flops, work in _peak_operations(dtype, device))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(before)
    return {"device_name": device_name(device), "threads": None if cuda else threads, "tflops": tflops}


def _peak_operations(dtype: Any, device: Any) -> Iterator[tuple[float, Callable[[], object]]]:
    """(FLOPs, the work): products of n x n matrices, 2 n^3 FLOPs, and convolutions as in the middle of a ResNet.

    Small ones, on a CPU, fit between two interruptions on a busy machine.
    """
    import torch

    from benchmarks.common.dist.devices import synchronize

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


def main(options: Options) -> int:
    results = load_set(options.results)
    environment = results.environment
    if options.measure:
        peak = measure_peak()
        others = sorted(set(results.ok.device_name) - {peak["device_name"]})
        if others:
            raise UserError(
                f"{options.results} was made on {others[0]}, and this is {peak['device_name']}: measure there"
            )
        environment["measured_peak"] = peak
        write_json(options.results / "environment.json", environment)
    uses = [(group.label, use) for group in results.groups if (use := device_use(group, environment))]
    if not uses:
        print(f"error: no ok row in {options.results}/runs.csv has flops_per_image and a throughput", file=sys.stderr)
        return 1
    for label, use in uses:
        share = "" if use.mfu is None else f"  MFU {100 * use.mfu:5.1f} % of {use.peak_tflops:,.3g}"
        print(f"{label:<24} {use.tflops:10.4g} TFLOP/s{share}   (peak: {use.peak_from})")
    if why := why_lower_mfu(uses):
        print(why)
    return 0


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(Options)))
