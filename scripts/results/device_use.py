"""How much of the device a training run uses: achieved TFLOP/s, and MFU, their share of the peak (arXiv:2204.02311).

Peaks are the vendor's dense figures; else those measured on this machine, measured_peak in environment.json. On a CPU a
rank's threads are the device.
"""

import dataclasses
import re

import pandas

from scripts.results.identity import arithmetic
from scripts.results.run_group import RunGroup

# Dense TFLOP/s of one device, without sparsity, from NVIDIA's data sheets; tensor cores accumulate in fp32. By the name
# of torch.cuda.get_device_name, all of it: more words are another device.
DATA_SHEET_TFLOPS = (
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


@dataclasses.dataclass(frozen=True)
class DeviceUse:
    """mfu: 0 to 1; None where the peak is unknown."""

    tflops: float
    mfu: float | None
    peak_from: str


def device_use(group: RunGroup, environment: dict) -> DeviceUse | None:
    """None without a throughput or FLOPs. environment: the set's environment.json."""
    if group.throughput is None or not group.ok_runs.flops_per_image.iloc[0] > 0:
        return None
    row = group.ok_runs.iloc[0]
    tflops, num_devices = group.throughput.value * row.flops_per_image / 1e12, row.world_size
    peak, peak_from = peak_tflops(row.device_name, row.precision, row.threads_per_rank, environment)
    if row.device == "cpu":  # ranks that share cores do not add to the peak
        shares = environment.get("num_cores", num_devices) // row.threads_per_rank * row.nodes
        num_devices = min(num_devices, max(shares, 1))
    return DeviceUse(tflops, tflops / (peak * num_devices) if peak else None, peak_from)


def peak_tflops(
    device_name: str, precision: str, threads_per_rank: float, environment: dict
) -> tuple[float | None, str]:
    """Dense peak of one device in a precision (fp32, tf32, fp16, bf16, apex-O1 ...), and where it is from."""
    kind = arithmetic(precision)
    for pattern, peaks in DATA_SHEET_TFLOPS:
        if re.fullmatch(pattern, device_name):
            return peaks.get(kind), f"NVIDIA's data sheet, dense {kind}"
    measured = environment.get("measured_peak") or {}
    if measured.get("device_name") != device_name or kind not in measured.get("tflops", {}):
        return None, "not known of this device"
    # None on a GPU; another number of threads is taken to be in proportion
    scale = threads_per_rank / (measured["threads"] or threads_per_rank)
    return measured["tflops"][kind] * scale, f"the fastest product or convolution measured here, {kind}"


def drop_unused_gpus(telemetry: pandas.DataFrame, runs: pandas.DataFrame) -> pandas.DataFrame:
    """The samples without those of GPUs that a run leaves idle: it computes on the first `world_size` of them."""
    numbers = pandas.to_numeric(telemetry.device.str.extract(r"^gpu(\d+)$")[0])
    places = numbers.groupby(telemetry.run_id).rank(method="dense")
    num_used = pandas.to_numeric(telemetry.run_id.map(runs.set_index("run_id").world_size))
    return telemetry[places.isna() | (places <= num_used)]
