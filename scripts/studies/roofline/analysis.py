"""How fast a GPU that is not at hand could train: the roof of its data sheet over a traced step, and a forecast.

    from scripts.studies.roofline.analysis import forecast_rows

A layer takes at least the longer of computing its FLOPs and moving its bytes. What real training reaches of that roof
is taken from figures that NVIDIA published for GPUs of the same list, with or without tensor cores as in that row; the
forecast is the range of those shares. It stays a forecast until a GPU confirms or refutes it. Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

from scripts.sets.device_use import peak_tflops


@dataclasses.dataclass(frozen=True)
class Layer:
    """What one layer of a step computes and moves, forward and backward, over the whole batch."""

    name: str
    flops: int
    moved_bytes: int
    """Read and written, each operation by itself."""
    fused_bytes: int
    """The same with each elementwise operation inside its neighbour's kernel."""


@dataclasses.dataclass(frozen=True)
class Gpu:
    name: str
    device_name: str
    """As torch.cuda.get_device_name tells it, which the table of peaks knows."""
    gb_per_s: float


# Memory bandwidth from NVIDIA's data sheets: V100 (2020), A100 80GB (2021), H100 SXM (2023), H200 SXM (2023).
GPUS = (
    Gpu("V100 SXM2", "Tesla V100-SXM2-16GB", 900.0),
    Gpu("A100 SXM 80 GB", "NVIDIA A100-SXM4-80GB", 2039.0),
    Gpu("H100 SXM", "NVIDIA H100 80GB HBM3", 3350.0),
    Gpu("H200 SXM", "NVIDIA H200", 4800.0),
)
MOVES_AS = {"fp32": "fp32", "tf32": "fp32", "fp16": "bf16", "bf16": "bf16"}
# ResNet-50, 224 px, training images/s of one GPU, as NVIDIA's ConvNets examples publish them (DeepLearningExamples,
# PyTorch/Classification/ConvNets/resnet50v1.5): channels last where mixed, no compilation of the graph.
PUBLISHED = (
    ("V100 SXM2", "fp32", 367.0),
    ("V100 SXM2", "fp16", 1200.0),
    ("A100 SXM 80 GB", "tf32", 938.0),
    ("A100 SXM 80 GB", "fp16", 2470.0),
)
PUBLISHED_SHAPE = ("resnet50", 224)


def roof_images_per_s(layers: Sequence[Layer], batch: int, tflops: float, gb_per_s: float, fused: bool) -> float:
    """Images/s at which every layer runs at its own limit: batch / sum of max(FLOPs / peak, bytes / bandwidth)."""
    seconds = sum(
        max(layer.flops / (tflops * 1e12), (layer.fused_bytes if fused else layer.moved_bytes) / (gb_per_s * 1e9))
        for layer in layers
    )
    return batch / seconds


def forecast_rows(layers: dict[str, Sequence[Layer]], arch: str, image_size: int, batch: int) -> list[dict]:
    """One row a GPU and precision that it has; rates in images/s of one GPU.

    layers: by the precision whose bytes they move, fp32 and bf16. forecast_low and forecast_high are empty for a model
    of which nothing is published.
    """
    rows = []
    for gpu in GPUS:
        for precision, moves in MOVES_AS.items():
            tflops, _ = peak_tflops(gpu.device_name, precision, 0.0, {})
            if tflops is None:
                continue
            found = layers[moves]
            flops, moved, fused = (
                sum(getattr(layer, name) for layer in found) for name in ("flops", "moved_bytes", "fused_bytes")
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
                    "layer_roof": roof_images_per_s(found, batch, tflops, gpu.gb_per_s, fused=False),
                    "layer_roof_fused": roof_images_per_s(found, batch, tflops, gpu.gb_per_s, fused=True),
                }
            )
    published = {entry[:2]: entry[2] for entry in PUBLISHED if (arch, image_size) == PUBLISHED_SHAPE}
    for row in rows:
        row["published"] = published.get((row["gpu"], row["precision"]))
    shares = [(row["precision"], row["published"] / row["layer_roof"]) for row in rows if row["published"]]
    for row in rows:
        alike = [share for precision, share in shares if (precision == "fp32") == (row["precision"] == "fp32")]
        row["forecast_low"] = min(alike) * row["layer_roof"] if alike else None
        row["forecast_high"] = max(alike) * row["layer_roof"] if alike else None
    return rows


def forecast_table(rows: list[dict]) -> str:
    """The rows as text for a terminal."""
    head = f"{'GPU':<15} {'':<5} {'compute':>9} {'bandwidth':>9} {'layers':>9} {'fused':>9}  {'forecast':<15} published"
    lines = [
        f"{rows[0]['arch']}, {rows[0]['image_size']} px, batch {rows[0]['batch']}: images/s of one GPU, by reading",
        head,
    ]
    for row in rows:
        low, high, said = row["forecast_low"], row["forecast_high"], row["published"]
        forecast = "" if low is None else f"{low:,.0f} to {high:,.0f}"
        roofs = " ".join(
            f"{row[name]:>9,.0f}" for name in ("compute_roof", "bandwidth_roof", "layer_roof", "layer_roof_fused")
        )
        lines.append(
            f"{row['gpu']:<15} {row['precision']:<5} {roofs}  {forecast:<15} {'' if said is None else f'{said:,.0f}'}"
        )
    return "\n".join(line.rstrip() for line in lines)
