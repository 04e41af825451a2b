"""The prediction beside figures that others published: the error of each, and why it is wrong. Needs no torch."""

import dataclasses
from pathlib import Path
from typing import Any

from benchmarks.common.system.repository import ROOT
from scripts.stats.formatting import text_table
from scripts.studies.allreduce.uncertain_value import UncertainValue, approximate, exact, summarize_draws
from scripts.studies.predict.machine_models import (
    ETHERNET_25_GBIT,
    GB,
    NCCL_CONTENTION,
    NETWORK_LATENCY_S,
    NVLINK_LATENCY_S,
    PCIE,
    RESNET50_PARAMETERS,
    DeviceStep,
    MachineModel,
    UncertainLink,
    gpu_step,
    read_gradients,
)
from scripts.studies.predict.step_model import StrategyOptions, ddp
from scripts.studies.predict.timeline import Gradient

RESNET50 = ROOT / "results/published/measured/gradients.csv"  # ResNet-50, 224 px
PCIE_OVER_SXM = 14.0 / 15.7  # fp32 TFLOP/s of V100 PCIe and SXM2 (NVIDIA, V100 data sheet, 2020)
RESNET50_OVER_RESNET18 = 4.09 / 1.81  # multiply-adds of a 224 px image, 10^9 (torchvision's table of models)
ONE_NODE = UncertainLink(NETWORK_LATENCY_S, exact(1.0))  # the link between nodes, where there is one node only


@dataclasses.dataclass(frozen=True)
class PublishedFigure:
    """A published speed on several devices."""

    what: str
    value: float
    """Speed on `num_devices` over that of one device; divided by num_devices where `is_efficiency`."""
    source: str
    machine: MachineModel
    num_devices: int
    why: str
    """Why the prediction differs."""
    is_efficiency: bool = False
    options: StrategyOptions = dataclasses.field(default_factory=StrategyOptions)

    def predict(self) -> UncertainValue:
        step, cluster = self.machine.draw()
        efficiency = step.seconds / ddp(step, cluster, self.num_devices, self.options)
        return summarize_draws(efficiency if self.is_efficiency else self.num_devices * efficiency)


def nccl_nodes(
    devices_per_node: int, within: UncertainLink, between: UncertainLink, step: DeviceStep, has_trees: bool = True
) -> MachineModel:
    """GPUs that communicate by NCCL."""
    return MachineModel("", devices_per_node, within, between, NCCL_CONTENTION, exact(1.0), has_trees, step, sources=())


def published_figures(gradients: tuple[Gradient, ...]) -> list[PublishedFigure]:
    """gradients: of ResNet-50. Those of other ResNets are taken as the same, with their sizes scaled."""
    nvidia = "NVIDIA, DeepLearningExamples, ResNet-50 v1.5"
    # 150 GB/s each way (V100 data sheet), 67 to 93 % taken as usable
    nvlink2 = UncertainLink(NVLINK_LATENCY_S, UncertainValue(125 * GB, 100 * GB, 140 * GB))
    # NCCL's tuning.cc takes at most 235; nccl-tests issues see 200
    nvlink3 = UncertainLink(NVLINK_LATENCY_S, UncertainValue(220 * GB, 200 * GB, 235 * GB))
    # 100 Gb/s of a node are assumed: the source does not say
    infiniband = UncertainLink(NETWORK_LATENCY_S, UncertainValue(1.4 * GB, 1.2 * GB, 1.5 * GB))
    a100_step = gpu_step(256, exact(2470.0), RESNET50_PARAMETERS, 2039 * GB, gradients)
    a100 = nccl_nodes(8, nvlink3, ONE_NODE, a100_step)
    v100_step = gpu_step(256, exact(1200.0), RESNET50_PARAMETERS, 900 * GB, gradients)
    v100 = nccl_nodes(8, nvlink2, ONE_NODE, v100_step)
    images_per_s = exact(1656.82 / 16)  # of 16 GPUs, as the source has it
    p100_step = gpu_step(64, images_per_s, 44.5e6, 732 * GB, scaled_gradients(gradients, 44.5e6))
    p100 = nccl_nodes(4, PCIE, ETHERNET_25_GBIT, p100_step, has_trees=False)
    dlperf_step = gpu_step(128, exact(348.62), RESNET50_PARAMETERS, 900 * GB, gradients)
    dlperf = nccl_nodes(8, nvlink2, infiniband, dlperf_step)
    return [
        PublishedFigure("8 x A100, AMP, over one", 6.72, nvidia, a100, 8,
                  "as many bytes of gradients cost the same machine 10 ms a step in TF32 (7.72x), 20 ms here; perhaps: "
                  "what is lost goes with images/s, as loading 16,621 JPEGs/s does, which this model leaves out"),
        PublishedFigure("8 x V100, AMP, over one", 6.93, nvidia, v100, 8,
                  "as many bytes cost it 9 ms a step in fp32 (7.76x, 112 images) and 33 ms here; perhaps: this, too, "
                  "goes with images/s"),
        PublishedFigure("512 x P100, Horovod, ResNet-101", 0.90, "horovod/docs/benchmarks.rst", p100, 512,
                  "its one-device speed is a sixteenth of a run on 16, which exchanged gradients already; the source "
                  "says no more of its network than 25 Gb/s and RoCE; Horovod's negotiation is left out",
                  True, StrategyOptions(bucket_cap_mb=64)),
        PublishedFigure("32 x V100, fp32", 0.898, "DLPerf, PyTorch examples, 48 loader workers", dlperf, 32,
                  "8 GPUs of one node were at 94 % already, which NVLink does not explain, and with 8 workers at 44 %: "
                  "loading is left out here", True),
    ]  # fmt: skip


def scaled_gradients(gradients: tuple[Gradient, ...], num_parameters: float) -> tuple[Gradient, ...]:
    """The gradients with sizes scaled to those of another model, in fp32."""
    scale = 4 * num_parameters / sum(gradient.num_bytes for gradient in gradients)
    return tuple(dataclasses.replace(gradient, num_bytes=round(scale * gradient.num_bytes)) for gradient in gradients)


def ddp_over_dataparallel(gradients: tuple[Gradient, ...]) -> UncertainValue:
    """4 x V100 PCIe, ResNet-18, 800 images a GPU: DDP's speed over DataParallel's.

    DataParallel's one process copies the images and the weights to the other GPUs and the gradients back, and computes
    nothing meanwhile.
    """
    images, num_parameters = 800, 11.7e6
    # NVIDIA's fp32 ResNet-50, scaled by FLOPs; 25 % is assumed
    images_per_s = approximate(367 * RESNET50_OVER_RESNET18 * PCIE_OVER_SXM, 0.25)
    own_gradients = scaled_gradients(gradients, num_parameters)
    machine = nccl_nodes(4, PCIE, ONE_NODE, gpu_step(images, images_per_s, num_parameters, 900 * GB, own_gradients))
    step, cluster = machine.draw()
    copied_bytes = 3 * images * 3 * 224 * 224 * 4 + 2 * 3 * 4 * num_parameters
    dataparallel_s = step.seconds + copied_bytes / cluster.within.bytes_per_s
    return summarize_draws(dataparallel_s / ddp(step, cluster, 4, StrategyOptions()))


def published_rows(path: Path = RESNET50) -> list[dict[str, Any]]:
    """A row per published figure: what, published, source, why, predicted (an UncertainValue), and error, the relative
    difference. path: gradients.csv of ResNet-50."""
    gradients = read_gradients(path)
    rows: list[dict[str, Any]] = [
        {
            "what": figure.what,
            "published": figure.value,
            "source": figure.source,
            "why": figure.why,
            "predicted": figure.predict(),
        }
        for figure in published_figures(gradients)
    ]
    why = (
        "perhaps loading, left out here, set both: DataParallel's process had two workers and 310 images/s, DDP's four "
        "had eight and 1,078: 155 and 135 a worker"
    )
    rows.append(
        {
            "what": "4 x V100 PCIe, ResNet-18, DDP over DataParallel",
            "published": 3.48,
            "source": "README of github.com/tczhangzhi/pytorch-distributed, one run",
            "why": why,
            "predicted": ddp_over_dataparallel(gradients),
        }
    )
    return [row | {"error": row["predicted"].value / row["published"] - 1} for row in rows]


def published_table() -> str:
    """The rows as text, and why the prediction is wrong where it is off by more than 5 %."""
    rows = published_rows()
    lines = [("published by others", "published", "predicted", "95 %", "error")]
    for row in rows:
        predicted = row["predicted"]
        bounds = f"[{predicted.low:.3g}, {predicted.high:.3g}]"
        error = f"{100 * row['error']:+.0f} %"
        lines.append((row["what"], f"{row['published']:.3g}", f"{predicted.value:.3g}", bounds, error))
    wrong = [f"{row['what']} ({row['source']}): {row['why']}" for row in rows if abs(row["error"]) > 0.05]
    return "\n".join([text_table(lines, left_aligned=(0,)), "", "where it is off by more than 5 %:", *wrong])
