"""What a prediction starts from: one device's step and the links. Here are machines that are not available;
measured_machine.py has this one.

Each number of a preset is from a data sheet or a published measurement, or it is assumed; its sources say which. Needs
no torch.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from benchmarks.common.store.safe_names import LIMIT_BYTES
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_set_file
from scripts.studies.allreduce.links import Link
from scripts.studies.allreduce.uncertain_value import UncertainValue, exact
from scripts.studies.predict.step_model import Cluster, StepTimes
from scripts.studies.predict.timeline import Gradient

GB = 1e9
RESNET50_PARAMETERS = 25.6e6
GRADIENTS_COMMAND = "python -m scripts.studies.predict.gradient_times"


@dataclasses.dataclass(frozen=True)
class DeviceStep:
    """One device's training step without communication, each time with its interval."""

    images: float
    """Per step."""
    forward_s: UncertainValue
    backward_s: UncertainValue
    other_s: UncertainValue
    """Data wait, copies, and the rest of what grows with the number of images."""
    fixed_s: UncertainValue
    """The optimizer, whose time does not depend on the number of images."""
    spread: UncertainValue
    """Standard deviation of a step between devices, as a fraction of the step."""
    gradients: tuple[Gradient, ...]

    def draw(self, rng: numpy.random.Generator) -> StepTimes:
        """Times as arrays [1 + NUM_DRAWS]; the first entry is the number itself."""
        values = (self.forward_s, self.backward_s, self.other_s, self.fixed_s, self.spread)
        forward_s, backward_s, other_s, fixed_s, spread = (value.draw(rng) for value in values)
        spread_s = spread * (forward_s + backward_s + other_s + fixed_s)
        return StepTimes(self.images, forward_s, backward_s, other_s, fixed_s, self.gradients, spread_s)


@dataclasses.dataclass(frozen=True)
class UncertainLink:
    """A link whose latency and bandwidth have intervals."""

    latency_s: UncertainValue
    bytes_per_s: UncertainValue

    def draw(self, rng: numpy.random.Generator) -> Link:
        latency_s = self.latency_s.draw(rng)
        return Link(latency_s, self.bytes_per_s.draw(rng))


@dataclasses.dataclass(frozen=True)
class MachineModel:
    """The nodes of a cluster, their links, and one device's step on them, each number with its interval."""

    name: str
    devices_per_node: int
    within: UncertainLink
    """Between two devices of a node."""
    between: UncertainLink
    """Between nodes: one device's share of its node's network."""
    contention: UncertainValue
    """The fraction of its speed that computing loses while communication is under way."""
    slowdown: UncertainValue
    """How many times as long computing takes beside other devices that compute."""
    has_trees: bool
    """Whether the library has tree and hierarchical all-reduces, as NCCL has."""
    step: DeviceStep
    sources: tuple[str, ...]
    """Where the numbers are from: a sentence each."""
    half_precision_bytes_per_s: UncertainValue | None = None
    """Bandwidth within a node for sums of 2-byte values, where it is another one."""

    def draw(self, seed: int = 0) -> tuple[StepTimes, Cluster]:
        """The step and the cluster with arrays [1 + NUM_DRAWS] in place of numbers: the first entry is the number
        itself, the others are independent draws from all intervals."""
        rng = numpy.random.default_rng(seed)
        within, between = self.within.draw(rng), self.between.draw(rng)
        contention, slowdown = self.contention.draw(rng), self.slowdown.draw(rng)
        step = self.step.draw(rng)
        half = None
        if self.half_precision_bytes_per_s is not None:
            half = Link(within.latency_s, self.half_precision_bytes_per_s.draw(rng))
        contention = numpy.minimum(contention, 1.0)
        return step, Cluster(self.devices_per_node, within, between, contention, slowdown, half, self.has_trees)


# Latency of a message by NCCL's own tables, from its fastest to its safest protocol (nccl/src/graph/tuning.cc, hwLat of
# a ring): NVLink 0.6 to 3.4 us, PCIe 1.0 to 5.7 us, network 2.7 to 14 us.
NVLINK_LATENCY_S = UncertainValue(1.9e-6, 0.6e-6, 3.4e-6)
PCIE_LATENCY_S = UncertainValue(2.5e-6, 1.0e-6, 5.7e-6)
NETWORK_LATENCY_S = UncertainValue(4e-6, 2.7e-6, 14e-6)
# PCIe 3.0 x16 has 15.75 GB/s in each direction; 38 to 76 % of it are taken as usable.
PCIE = UncertainLink(PCIE_LATENCY_S, UncertainValue(10 * GB, 6 * GB, 12 * GB))
# A quarter of 25 Gb/s is 0.78 GB/s; 77 to 97 % of it are taken as usable.
ETHERNET_25_GBIT = UncertainLink(NETWORK_LATENCY_S, UncertainValue(0.7 * GB, 0.6 * GB, 0.76 * GB))
NCCL_CONTENTION = UncertainValue(0.1, 0.03, 0.25)
# Of ranks with one core each: while gloo sends, computing stands still. Found by ./bench study predict-check: with the
# CPU time of gloo's own all-reduces in place of it, steps over a link of 1 Gb/s took 13 % longer than predicted.
CPU_CONTENTION = 1.0
LATENCY_SOURCE = "latency of a message: NCCL's tuning.cc, from its fastest to its safest protocol"
GRADIENTS_SOURCE = "when gradients are ready: as in ResNet-50's backward pass on a CPU at batch 4 (gradients.csv)"
ASSUMED_SOURCE = (
    "the fraction of computing that NCCL's kernels take, and the spread between devices (1 % of a step), are assumed"
)


def h100x8(gradients: tuple[Gradient, ...], images_per_s: UncertainValue, images: float) -> MachineModel:
    """Nodes of 8 H100 SXM. images_per_s: of one GPU that trains ResNet-50 by itself. images: per step."""
    return MachineModel(
        "8 x H100 a node, NVLink, 400 Gb/s a GPU between nodes",
        8,
        within=UncertainLink(NVLINK_LATENCY_S, UncertainValue(350 * GB, 300 * GB, 370 * GB)),
        between=UncertainLink(NETWORK_LATENCY_S, UncertainValue(46 * GB, 40 * GB, 49 * GB)),
        contention=NCCL_CONTENTION,
        slowdown=exact(1.0),
        has_trees=True,
        step=gpu_step(images, images_per_s, RESNET50_PARAMETERS, 3350 * GB, gradients),
        sources=(
            "NVLink 4: 450 GB/s each way (NVIDIA, H100 data sheet, 2023); nccl-tests' busbw: 370 by a ring "
            "(NVIDIA/nccl-tests, issue 212), which is taken as the most, and 300 is assumed as the least; the 480 of "
            "NVLink SHARP need messages larger than 256 MB",
            "ConnectX-7, one a GPU: 50 GB/s (NVIDIA, DGX H100 data sheet, 2023), 80 to 98 % of it taken as usable",
            "images/s of one GPU: a forecast by its roofline (./bench study roofline), until one is measured",
            LATENCY_SOURCE,
            GRADIENTS_SOURCE,
            ASSUMED_SOURCE,
        ),
    )


def v100x4(gradients: tuple[Gradient, ...], images_per_s: UncertainValue, images: float) -> MachineModel:
    """Nodes of 4 V100 PCIe. images_per_s: of one GPU that trains ResNet-50 by itself. images: per step."""
    return MachineModel(
        "4 x V100 PCIe a node, 25 Gb/s between nodes",
        4,
        within=PCIE,
        between=ETHERNET_25_GBIT,
        contention=UncertainValue(0.05, 0.02, 0.1),
        slowdown=exact(1.0),
        has_trees=True,
        step=gpu_step(images, images_per_s, RESNET50_PARAMETERS, 900 * GB, gradients),
        sources=(
            "PCIe 3.0 x16: 15.75 GB/s each way by its specification; 6 to 12 GB/s taken as usable among 4 GPUs",
            "25 Gb/s of a node are 3.1 GB/s, a quarter of it a GPU; 77 to 97 % of it taken as usable",
            "images/s of one GPU: 1,200 with AMP (NVIDIA, DeepLearningExamples, SXM2), times 14 / 15.7 for PCIe",
            LATENCY_SOURCE,
            GRADIENTS_SOURCE,
            ASSUMED_SOURCE,
        ),
    )


def gpu_step(
    images: float,
    images_per_s: UncertainValue,
    num_parameters: float,
    memory_bytes_per_s: float,
    gradients: tuple[Gradient, ...],
) -> DeviceStep:
    """A GPU's step from its images/s: a third of the computing is forward and two thirds backward, like their FLOPs.
    SGD with momentum reads weight, gradient and momentum and writes weight and momentum, 4 bytes each."""
    shortest_s, longest_s = sorted(images / end for end in (images_per_s.low, images_per_s.high))
    fixed_s = 5 * 4 * num_parameters / memory_bytes_per_s
    compute = UncertainValue(images / images_per_s.value - fixed_s, shortest_s - fixed_s, longest_s - fixed_s)
    forward, backward = (
        UncertainValue(share * compute.value, share * compute.low, share * compute.high) for share in (1 / 3, 2 / 3)
    )
    spread = UncertainValue(0.01, 0.003, 0.02)
    return DeviceStep(images, forward, backward, exact(0.0), exact(fixed_s), spread, gradients)


def read_gradients(path: Path) -> tuple[Gradient, ...]:
    """The gradients of a gradients.csv. Raises UserError where the file is missing or its content is impossible."""
    try:
        rows = csv.DictReader(io.StringIO(read_set_file(path, LIMIT_BYTES).decode("utf-8"), newline=""))
        gradients = tuple(gradient_of(row) for row in rows)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; {GRADIENTS_COMMAND} makes it") from None
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise UserError(f"{path} holds no gradients ({error}); {GRADIENTS_COMMAND} makes it") from None
    if not gradients:
        raise UserError(f"{path} holds no gradients; {GRADIENTS_COMMAND} makes it")
    for gradient in gradients:
        if not (gradient.num_bytes > 0 and 0 <= gradient.ready <= 1 and gradient.out_bytes >= 0):
            raise UserError(
                f"{path}: {gradient.name} has num_bytes {gradient.num_bytes}, out_bytes {gradient.out_bytes} and ready "
                f"{gradient.ready:g} (0 to 1: a fraction of the backward pass); {GRADIENTS_COMMAND} makes the file"
            )
    if not max(gradient.ready for gradient in gradients):
        raise UserError(
            f"{path}: all gradients are ready at 0, before the backward pass; {GRADIENTS_COMMAND} makes the file"
        )
    return gradients


def gradient_of(row: Mapping[Any, Any]) -> Gradient:
    """The gradient of a row of gradients.csv. Raises KeyError, TypeError or ValueError for a cell that is wrong."""
    return Gradient(row["name"], row["block"], int(row["num_bytes"]), float(row["ready"]), int(row["out_bytes"]))
