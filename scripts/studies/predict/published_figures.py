"""The prediction beside figures that others published, each with its error, and why where it is wrong. Needs no torch.

from scripts.studies.predict.published_figures import published_rows, published_table
"""

import dataclasses
from pathlib import Path

from scripts.stats.formatting import text_table
from scripts.studies.allreduce.links import Known, about, estimate_of, exactly
from scripts.studies.predict.machine_models import (
    ETHERNET,
    GB,
    NCCL_BUSY,
    NETWORK,
    NVLINK,
    PCIE,
    PCIE_BYTES,
    Given,
    one_gpu,
    read_gradients,
)
from scripts.studies.predict.step_model import Choices, ddp
from scripts.studies.predict.timeline import Gradient

RESNET50 = Path(__file__).resolve().parents[3] / "results/published/measured/gradients.csv"  # ResNet-50, 224 px
PCIE_OVER_SXM = 14.0 / 15.7  # fp32 TFLOP/s of V100 PCIe and SXM2 (NVIDIA, V100 data sheet, 2020)
R50_OVER_R18 = 4.09 / 1.81  # multiply-adds of a 224 px image, 10^9 (torchvision's table of models)


@dataclasses.dataclass(frozen=True)
class Published:
    """value: speed on `devices` over one device's, or its share where `share`."""

    what: str
    value: float
    source: str
    given: Given
    devices: int
    why: str
    share: bool = False
    choices: Choices = dataclasses.field(default_factory=Choices)


def gpus(count, latency, within, between, images, per_s, parameters, memory, gradients, trees=True) -> Given:
    """`count` GPUs a node. within, between, memory: bytes/s of one; per_s: images/s of one by itself."""
    own = one_gpu(images, per_s, parameters, memory)
    own |= {"gradients": gradients, "sources": ()}
    return Given("", count, latency, within, NETWORK, between, NCCL_BUSY, exactly(1.0), trees, images, **own)


def figures(gradients: tuple[Gradient, ...]) -> list[Published]:
    """gradients: of ResNet-50; those of other ResNets are taken as the same, scaled."""

    def scaled(parameters: float) -> tuple[Gradient, ...]:
        times = 4 * parameters / sum(each.num_bytes for each in gradients)
        return tuple(dataclasses.replace(each, num_bytes=round(times * each.num_bytes)) for each in gradients)

    alone = exactly(1.0)  # a single node, which sends nothing out
    nvidia = "NVIDIA, DeepLearningExamples, ResNet-50 v1.5"
    nvlink2 = Known(125 * GB, 100 * GB, 140 * GB)  # 150 GB/s each way (V100 data sheet), 67 to 93 % taken as usable
    nvlink3 = Known(220 * GB, 200 * GB, 235 * GB)  # NCCL's tuning.cc takes at most 235; nccl-tests issues see 200
    a100 = gpus(8, NVLINK, nvlink3, alone, 256, exactly(2470.0), 25.6e6, 2039 * GB, gradients)
    v100 = gpus(8, NVLINK, nvlink2, alone, 256, exactly(1200.0), 25.6e6, 900 * GB, gradients)
    a_gpu = exactly(1656.82 / 16)  # of 16, as the source has it
    uber = gpus(4, PCIE, PCIE_BYTES, ETHERNET, 64, a_gpu, 44.5e6, 732 * GB, scaled(44.5e6), trees=False)
    infiniband = Known(1.4 * GB, 1.2 * GB, 1.5 * GB)  # 100 Gb/s of a node are assumed: the source does not say
    dlperf = gpus(8, NVLINK, nvlink2, infiniband, 128, exactly(348.62), 25.6e6, 900 * GB, gradients)
    return [
        Published("8 x A100, AMP, over one", 6.72, nvidia, a100, 8,
                  "as many bytes of gradients cost the same machine 10 ms a step in TF32 (7.72x), 20 ms here; perhaps: "
                  "what is lost goes with images/s, as loading 16,621 JPEGs/s does, which this model leaves out"),
        Published("8 x V100, AMP, over one", 6.93, nvidia, v100, 8,
                  "as many bytes cost it 9 ms a step in fp32 (7.76x, 112 images) and 33 ms here; perhaps: this, too, "
                  "goes with images/s"),
        Published("512 x P100, Horovod, ResNet-101", 0.90, "horovod/docs/benchmarks.rst", uber, 512,
                  "its one-device speed is a sixteenth of a run on 16, which exchanged gradients already; the source "
                  "says no more of its network than 25 Gb/s and RoCE; Horovod's negotiation is left out",
                  True, Choices(bucket_cap_mb=64)),
        Published("32 x V100, fp32", 0.898, "DLPerf, PyTorch examples, 48 loader workers", dlperf, 32,
                  "8 GPUs of one node were at 94 % already, which NVLink does not explain, and with 8 workers at 44 %: "
                  "loading is left out here", True),
    ]  # fmt: skip


def over_dataparallel(gradients: tuple[Gradient, ...]) -> Known:
    """4 x V100 PCIe, ResNet-18, 800 images a GPU: DDP's speed over DataParallel's, whose one process copies a batch to
    the others, the weights to them and the gradients back, with nothing beside it."""
    images, parameters = 800, 11.7e6
    per_s = about(367 * R50_OVER_R18 * PCIE_OVER_SXM, 0.25)  # NVIDIA's fp32 ResNet-50, by FLOPs; 25 % is assumed
    times = 4 * parameters / sum(each.num_bytes for each in gradients)
    own = tuple(dataclasses.replace(each, num_bytes=round(times * each.num_bytes)) for each in gradients)
    machine = gpus(4, PCIE, PCIE_BYTES, exactly(1.0), images, per_s, parameters, 900 * GB, own)
    step, node = machine.drawn()
    copied = 3 * images * 3 * 224 * 224 * 4 + 2 * 3 * 4 * parameters
    together = step.seconds + copied / node.within.bytes_per_s
    return estimate_of(together / ddp(step, node, 4, Choices()))


def published_rows(path: Path = RESNET50) -> list[dict]:
    """What is published, what is predicted with its interval, the error as a share, and why."""
    gradients, rows = read_gradients(path), []
    for one in figures(gradients):
        step, machine = one.given.drawn()
        share = step.seconds / ddp(step, machine, one.devices, one.choices)
        known = estimate_of(share if one.share else one.devices * share)
        row = {"what": one.what, "published": one.value, "source": one.source, "why": one.why}
        rows.append(row | {"predicted": known})
    source = "README of github.com/tczhangzhi/pytorch-distributed, one run"
    why = (
        "loading, left out here, set both: DataParallel's process had two workers and 310 images/s, DDP's four had "
        "eight and 1,078: 155 and 135 a worker"
    )
    row = {"what": "4 x V100 PCIe, ResNet-18, DDP over DataParallel", "published": 3.48, "source": source, "why": why}
    rows.append(row | {"predicted": over_dataparallel(gradients)})
    return [row | {"error": row["predicted"].value / row["published"] - 1} for row in rows]


def published_table(path: Path = RESNET50) -> str:
    rows = published_rows(path)
    lines = [("published by others", "published", "predicted", "95 %", "error")]
    for row in rows:
        known = row["predicted"]
        bounds = f"[{known.low:.3g}, {known.high:.3g}]"
        cells = (row["what"], f"{row['published']:.3g}", f"{known.value:.3g}", bounds)
        lines.append((*cells, f"{100 * row['error']:+.0f} %"))
    wrong = [f"{row['what']} ({row['source']}): {row['why']}" for row in rows if abs(row["error"]) > 0.05]
    return "\n".join([text_table(lines, left=(0,)), "", "where it is off by more than 5 %:", *wrong])
