"""The prediction beside figures that others published, each with its error, and why where it is wrong. Needs no torch.

from scripts.analysis.published import published_rows, published_table
"""

import dataclasses
from pathlib import Path

from scripts.analysis.links import Known, estimate_of, exactly
from scripts.analysis.machines import GB, NETWORK, NVLINK, PCIE, Given, one_gpu, read_gradients
from scripts.analysis.predict import Choices, ddp
from scripts.analysis.timeline import Gradient
from scripts.analysis.words import text_table

RESNET50 = Path(__file__).resolve().parents[2] / "results/published/measured/gradients.csv"  # ResNet-50, 224 px
LOADER = "they trained from JPEG files: that loaders do not keep up is no part of this model"


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
    busy, alike = Known(0.1, 0.03, 0.25), exactly(1.0)
    own |= {"gradients": gradients, "sources": ()}
    return Given("", count, latency, within, NETWORK, between, busy, alike, trees, images, **own)


def figures(gradients: tuple[Gradient, ...]) -> list[Published]:
    """gradients: of ResNet-50; those of other ResNets are taken as the same, scaled."""

    def scaled(parameters: float) -> tuple[Gradient, ...]:
        times = 4 * parameters / sum(each.num_bytes for each in gradients)
        return tuple(dataclasses.replace(each, num_bytes=round(times * each.num_bytes)) for each in gradients)

    alone = exactly(1.0)  # a single node, which sends nothing out
    nvlink2, pcie = Known(125 * GB, 100 * GB, 140 * GB), Known(10 * GB, 6 * GB, 12 * GB)
    nvidia = "NVIDIA, DeepLearningExamples, ResNet-50 v1.5"
    nvlink3 = Known(235 * GB, 220 * GB, 250 * GB)  # nccl-tests' busbw, as the others
    a100 = gpus(8, NVLINK, nvlink3, alone, 256, exactly(2470.0), 25.6e6, 2039 * GB, gradients)
    v100 = gpus(8, NVLINK, nvlink2, alone, 256, exactly(1200.0), 25.6e6, 900 * GB, gradients)
    ethernet, a_gpu = Known(0.7 * GB, 0.6 * GB, 0.76 * GB), exactly(1656.82 / 16)  # of 16, as the source has it
    uber = gpus(4, PCIE, pcie, ethernet, 64, a_gpu, 44.5e6, 732 * GB, scaled(44.5e6), trees=False)
    infiniband = Known(1.4 * GB, 1.2 * GB, 1.5 * GB)  # 100 Gb/s of a node
    dlperf = gpus(8, NVLINK, nvlink2, infiniband, 128, exactly(354.4), 25.6e6, 900 * GB, gradients)
    return [
        Published("8 x A100, AMP, over one", 6.72, nvidia, a100, 8, LOADER),
        Published("8 x V100, AMP, over one", 6.93, nvidia, v100, 8, LOADER),
        Published("512 x P100, Horovod, ResNet-101", 0.90, "horovod/docs/benchmarks.rst", uber, 512,
                  "stragglers among 128 servers, and Horovod's own negotiation", True, Choices(bucket_cap_mb=64)),
        Published("32 x V100, fp32", 0.898, "DLPerf, PyTorch examples, 48 loader workers", dlperf, 32,
                  f"{LOADER}; with 8 workers a node the same 32 GPUs reached 42 %", True),
    ]  # fmt: skip


def over_dataparallel(gradients: tuple[Gradient, ...]) -> Known:
    """4 x V100 PCIe, ResNet-18, 800 images a GPU: DDP's speed over DataParallel's, whose one process copies a batch to
    the others, the weights to them and the gradients back, with nothing beside it."""
    images, parameters, per_s = 800, 11.7e6, Known(900.0, 750.0, 1100.0)
    times = 4 * parameters / sum(each.num_bytes for each in gradients)
    own = tuple(dataclasses.replace(each, num_bytes=round(times * each.num_bytes)) for each in gradients)
    pcie = Known(10 * GB, 6 * GB, 12 * GB)
    machine = gpus(4, PCIE, pcie, exactly(1.0), images, per_s, parameters, 900 * GB, own)
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
    source = "README's chart of the fourteen systems, one run"
    why = (
        "270 images/s a GPU are a quarter of what it computes: loaders were the limit, two workers a process, and "
        "DDP has four processes where DataParallel has one"
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
