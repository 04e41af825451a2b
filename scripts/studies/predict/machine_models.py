"""What a prediction starts from: one device's step and the links, of this machine or of one that is not available.

    from scripts.studies.predict.machine_models import MachineModel, h100x8, read_gradients, this_machine, v100x4

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
import pandas

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file
from scripts.sets.result_set import ResultSet, RunGroup
from scripts.sets.safe_names import LIMIT_BYTES
from scripts.sets.step_breakdown import mean_over_steps, step_parts
from scripts.strategies.strategy_list import BASELINE
from scripts.studies.allreduce.links import Link, LinkFit
from scripts.studies.allreduce.uncertain_value import UncertainValue, approximate, exact
from scripts.studies.predict.step_model import Cluster, HalfPrecision, StepTimes
from scripts.studies.predict.timeline import Gradient

GB = 1e9
RESNET50_PARAMETERS = 25.6e6
PHASES_MS = ["data_ms", "copy_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms"]
ASSUMED_GBIT = 10.0  # of a node's network
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
    half_precision_contention: UncertainValue | None = None

    def draw(self, seed: int = 0) -> tuple[StepTimes, Cluster]:
        """The step and the cluster with arrays [1 + NUM_DRAWS] in place of numbers: the first entry is the number
        itself, the others are independent draws from all intervals."""
        rng = numpy.random.default_rng(seed)
        within, between = self.within.draw(rng), self.between.draw(rng)
        contention, slowdown = self.contention.draw(rng), self.slowdown.draw(rng)
        step = self.step.draw(rng)
        half = None
        if self.half_precision_bytes_per_s is not None and self.half_precision_contention is not None:
            half_link = Link(within.latency_s, self.half_precision_bytes_per_s.draw(rng))
            half = HalfPrecision(half_link, numpy.minimum(self.half_precision_contention.draw(rng), 1.0))
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


def this_machine(
    results: ResultSet,
    fits: dict[str, LinkFit],
    gradients: tuple[Gradient, ...],
    devices_per_node: int,
    slowdown: UncertainValue | None,
    between_gbit: float = 0.0,
) -> MachineModel:
    """This machine's model, from the step breakdown of a set's baseline and the fits of a links.csv.

    slowdown: of computing beside other ranks; None: not measured, and taken as 1. between_gbit: Gb/s of a node's
    network; 0: ASSUMED_GBIT.

    Raises UserError where the set has no step breakdown of its baseline, or the fits are of neither gloo nor NCCL.
    """
    path = next((name for name in ("nccl", "gloo") if name in fits), None)
    group = baseline_of(results)
    parts = _baseline_parts(results, group)
    if path is None:
        raise UserError(f"the links are of {', '.join(fits)}, but not of gloo or NCCL; run ./bench study allreduce")
    assert group is not None
    fit, half = fits[path], fits.get(f"{path}, bf16")
    on_cpu = path == "gloo"  # on GPUs, `busy` is that of the CPU, which waits, and says nothing about the GPU
    gbit = between_gbit or ASSUMED_GBIT
    device_bytes_per_s = gbit * GB / 8 / devices_per_node
    between_bytes_per_s = UncertainValue(
        0.88 * device_bytes_per_s, 0.72 * device_bytes_per_s, 0.96 * device_bytes_per_s
    )
    num_images = float(group.ok.global_batch.iloc[0])
    return MachineModel(
        f"{group.ok.device_name.iloc[0]}, {devices_per_node} devices a node ({path}), {gbit:g} Gb/s between nodes",
        devices_per_node,
        within=UncertainLink(fit.latency_s, fit.bytes_per_s),
        between=UncertainLink(approximate(30e-6, 0.5), between_bytes_per_s),
        contention=fit.busy if on_cpu else NCCL_CONTENTION,
        slowdown=slowdown or exact(1.0),
        has_trees=not on_cpu,
        step=_measured_step(parts, num_images, gradients),
        sources=(
            f"one device: {len(parts)} accounted steps of {BASELINE} in {results.name}; links within a node: links.csv",
            f"between nodes: {gbit:g} Gb/s {'as given' if between_gbit else 'are assumed'}; that 72 to 96 % of it are "
            "usable, and 30 us, are assumed",
            "spread of devices: that of one device's steps",
            "busy (CPU time that communication takes from computing): links.csv"
            if on_cpu
            else "busy (what NCCL's kernels take from computing), 3 to 25 %, is assumed: links.csv has that of a CPU "
            "that waited",
            f"beside other ranks computing takes {slowdown.value:.2f} times as long: ./bench study predict-check"
            if slowdown
            else "ranks are assumed not to slow each other's computing; ./bench study predict-check measures it",
        ),
        half_precision_bytes_per_s=half.bytes_per_s if half else None,
        half_precision_contention=(half.busy if on_cpu else NCCL_CONTENTION) if half else None,
    )


def _baseline_parts(results: ResultSet, group: RunGroup | None) -> pandas.DataFrame:
    """The step breakdown of the baseline's runs, as step_parts. Raises UserError where there is none."""
    steps = results.table("steps")
    parts = step_parts(group, steps) if group is not None and len(steps) else pandas.DataFrame()
    if parts.empty:
        raise UserError(
            f"{results.path} has no breakdown of {BASELINE}'s steps (steps.csv), which a prediction starts from; "
            f"run: ./bench run {BASELINE} --results results/new -- --account-steps 8"
        )
    return parts


def _measured_step(parts: pandas.DataFrame, images: float, gradients: tuple[Gradient, ...]) -> DeviceStep:
    rest = parts.assign(rest_ms=parts.data_ms + parts.copy_ms + parts.other_ms)
    total_ms = parts[PHASES_MS].sum(axis=1)
    of_runs = total_ms.groupby(parts.run_id)
    spread_of_runs = of_runs.std(ddof=1) / of_runs.mean()
    return DeviceStep(
        images,
        forward_s=mean_s(parts, "forward_ms"),
        backward_s=mean_s(parts, "backward_ms"),
        other_s=mean_s(rest, "rest_ms"),
        fixed_s=mean_s(parts, "optimizer_ms"),
        spread=exact(float(spread_of_runs.mean()) if spread_of_runs.notna().any() else 0.0),
        gradients=gradients,
    )


def baseline_of(results: ResultSet) -> RunGroup | None:
    """The group of the baseline's runs that most strategies of a set are compared with; None without any."""
    labels = [*results.baseline_label_of.values()]
    return max(results.timed_groups_of(BASELINE), key=lambda group: labels.count(group.label), default=None)


def mean_s(parts: pandas.DataFrame, column: str) -> UncertainValue:
    """The mean of a phase in seconds. parts: as step_parts, in milliseconds. The interval is Student's, over steps or
    over runs (see step_breakdown.mean_over_steps)."""
    mean = mean_over_steps([values.to_numpy(float) for _, values in parts.groupby("run_id")[column]])
    assert mean is not None
    if mean.low is None or mean.high is None:
        return exact(mean.value / 1000)
    return UncertainValue(mean.value / 1000, max(mean.low, 0.0) / 1000, mean.high / 1000)


def read_gradients(path: Path) -> tuple[Gradient, ...]:
    """The gradients of a gradients.csv. Raises UserError where the file is missing or its content is impossible."""
    try:
        rows = csv.DictReader(io.StringIO(read_regular_file(path, LIMIT_BYTES).decode("utf-8"), newline=""))
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
