"""The roofline of GPUs that are not available: the most images/s by their data sheets, and a forecast.

A layer takes at least the longer of computing its FLOPs and moving its bytes (Williams, Waterman and Patterson, CACM
52, 2009). The forecast is the roof times the fractions of it that trainings published by NVIDIA reach, on the GPUs
below, with or without tensor cores as in the forecast's row. It stays a forecast until a measurement confirms or
refutes it. Needs no torch.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.sets.device_use import peak_tflops


@dataclasses.dataclass(frozen=True)
class Layer:
    """What one layer of a step computes and moves, forward and backward, over the whole batch."""

    name: str
    flops: int
    moved_bytes: int
    """Read and written, each operation by itself."""
    fused_bytes: int
    """The same with each elementwise operation inside the kernel before it."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    device_name: str
    """As torch.cuda.get_device_name returns it; the key of the table of peaks."""
    gb_per_s: float
    names: str
    """A pattern of the names of all devices whose memory has this bandwidth."""


# Memory bandwidth from NVIDIA's data sheets: V100 (2020), A100 80GB (2021), H100 SXM (2023), H200 SXM (2023).
GPUS = (
    Gpu("V100 SXM2", "Tesla V100-SXM2-16GB", 900.0, r"Tesla V100-(SXM2|PCIE)-(16|32)GB"),
    Gpu("A100 SXM 80 GB", "NVIDIA A100-SXM4-80GB", 2039.0, r"NVIDIA A100-SXM4-80GB"),
    Gpu("H100 SXM", "NVIDIA H100 80GB HBM3", 3350.0, r"NVIDIA H100 80GB HBM3"),
    Gpu("H200 SXM", "NVIDIA H200", 4800.0, r"NVIDIA H200"),
)
# The precision whose traced bytes stand for those of each precision.
TRAFFIC_PRECISION = {"fp32": "fp32", "tf32": "fp32", "fp16": "bf16", "bf16": "bf16"}
# ResNet-50, 224 px, training images/s of one GPU, as NVIDIA's ConvNets examples publish them (DeepLearningExamples,
# PyTorch/Classification/ConvNets/resnet50v1.5): channels last where mixed, no compilation of the graph.
PUBLISHED_IMAGES_PER_S = (
    ("V100 SXM2", "fp32", 367.0),
    ("V100 SXM2", "fp16", 1200.0),
    ("A100 SXM 80 GB", "tf32", 938.0),
    ("A100 SXM 80 GB", "fp16", 2470.0),
)
PUBLISHED_MODEL = ("resnet50", 224)


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Images/s of one GPU that trains ResNet-50 at 224 px on synthetic images, in bf16 and channels_last, 256 at a
    time: between low and high. compiled: by torch.compile."""

    gpu: str
    compiled: bool
    low: float
    high: float


# An estimate by reading, of November 2026, that nobody has measured: from the sources of torch 2.15 and 2.11 and the
# GPUs' data sheets, before any run of this suite on a GPU. It is here to be held against the first one.
EXPECTED = (
    Expectation("H100 SXM", False, 2300.0, 2800.0),
    Expectation("H100 SXM", True, 2900.0, 3400.0),
    Expectation("H200 SXM", False, 2700.0, 3300.0),
    Expectation("H200 SXM", True, 3300.0, 4000.0),
)


def roof_images_per_s(layers: Sequence[Layer], batch: int, tflops: float, gb_per_s: float, fused: bool) -> float:
    """Images/s at which every layer runs at its limit: batch / sum over layers of max(FLOPs / peak, bytes / bandwidth).

    fused: count each layer's fused_bytes instead of its moved_bytes.
    """
    seconds = sum(
        max(layer.flops / (tflops * 1e12), (layer.fused_bytes if fused else layer.moved_bytes) / (gb_per_s * 1e9))
        for layer in layers
    )
    return batch / seconds


def forecast_rows(
    layers: Mapping[str, Sequence[Layer]], arch: str, image_size: int, batch: int
) -> list[dict[str, Any]]:
    """Rows of forecast.csv: one per GPU and precision that it has. Rates are images/s of one GPU.

    layers: by the precision whose bytes they move, fp32 and bf16. forecast_low and forecast_high are None for a model
    of which nothing is published.
    """
    rows = []
    for gpu in GPUS:
        for precision, traffic_precision in TRAFFIC_PRECISION.items():
            tflops, _ = peak_tflops(gpu.device_name, precision, 0.0, {})
            if tflops is None:
                continue
            of_step = layers[traffic_precision]
            flops, moved, fused = (
                sum(getattr(layer, name) for layer in of_step) for name in ("flops", "moved_bytes", "fused_bytes")
            )
            rows.append(
                {
                    "arch": arch,
                    "image_size": image_size,
                    "batch": batch,
                    "gpu": gpu.name,
                    "precision": precision,
                    "compute_roof": batch * tflops * 1e12 / flops,
                    "bandwidth_roof": batch * gpu.gb_per_s * 1e9 / moved,
                    "bandwidth_roof_fused": batch * gpu.gb_per_s * 1e9 / fused,
                    "layer_roof": roof_images_per_s(of_step, batch, tflops, gpu.gb_per_s, fused=False),
                    "layer_roof_fused": roof_images_per_s(of_step, batch, tflops, gpu.gb_per_s, fused=True),
                }
            )
    published = {entry[:2]: entry[2] for entry in PUBLISHED_IMAGES_PER_S if (arch, image_size) == PUBLISHED_MODEL}
    for row in rows:
        row["published"] = published.get((row["gpu"], row["precision"]))
    shares = [(row["precision"], row["published"] / row["layer_roof"]) for row in rows if row["published"]]
    for row in rows:
        alike = [share for precision, share in shares if (precision == "fp32") == (row["precision"] == "fp32")]
        row["forecast_low"] = min(alike) * row["layer_roof"] if alike else None
        row["forecast_high"] = max(alike) * row["layer_roof"] if alike else None
    return rows


def forecast_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text for a terminal."""
    head = f"{'GPU':<15} {'':<5} {'compute':>9} {'bandwidth':>9} {'layers':>9} {'fused':>9}  {'forecast':<15} published"
    lines = [
        f"{rows[0]['arch']}, {rows[0]['image_size']} px, batch {rows[0]['batch']}: images/s of one GPU, by reading",
        head,
    ]
    for row in rows:
        low, high, published = row["forecast_low"], row["forecast_high"], row["published"]
        forecast = "" if low is None else f"{low:,.0f} to {high:,.0f}"
        roofs = " ".join(
            f"{row[name]:>9,.0f}" for name in ("compute_roof", "bandwidth_roof", "layer_roof", "layer_roof_fused")
        )
        known = "" if published is None else f"{published:,.0f}"
        lines.append(f"{row['gpu']:<15} {row['precision']:<5} {roofs}  {forecast:<15} {known}")
    return "\n".join(line.rstrip() for line in lines)
