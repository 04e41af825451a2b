"""How long a step takes on more devices than are available: a timeline for each strategy, from one device's step.

The times of computing are measured on one device. The times of messages follow from the sizes of the gradients, the
moments at which the backward pass has them, and the links (scripts/studies/allreduce/links.py). Times may be arrays
with one entry per Monte Carlo draw. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy

from benchmarks.common.model.cuts import balanced_cuts
from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import AllReduceModel, Link, hierarchical, ring, tree
from scripts.studies.allreduce.uncertain_value import Number
from scripts.studies.predict.timeline import Gradient, ddp_buckets, expected_maximum, model_blocks, overlapped_s


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The parts of one device's training step without communication, in seconds."""

    images: float
    """Per device and step."""
    forward_s: Number
    backward_s: Number
    other_s: Number
    """Data wait, copies and the rest of what grows with the number of images."""
    fixed_s: Number
    """The optimizer and the rest of what does not depend on the number of images."""
    gradients: tuple[Gradient, ...]
    spread_s: Number = 0.0
    """Standard deviation of one step between devices that start together."""

    @property
    def seconds(self) -> Number:
        return self.forward_s + self.backward_s + self.other_s + self.fixed_s

    @property
    def num_bytes(self) -> int:
        """Of all gradients."""
        return sum(gradient.num_bytes for gradient in self.gradients)

    def with_images(self, images: float) -> "StepTimes":
        """The step with another number of images: times in proportion, which is optimistic for few images."""
        scale = images / self.images
        return dataclasses.replace(
            self,
            images=images,
            forward_s=scale * self.forward_s,
            backward_s=scale * self.backward_s,
            other_s=scale * self.other_s,
            spread_s=scale * self.spread_s,
        )


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Nodes with several devices each, and the links between the devices."""

    devices_per_node: int
    within: Link
    """Between two devices of a node."""
    between: Link
    """Between nodes: one device's share of its node's network."""
    contention: Number = 0.0
    """The fraction of its speed that computing loses while communication is under way, 0 to 1."""
    slowdown: Number = 1.0
    """How many times as long computing takes beside other devices that compute."""
    half_precision: Link | None = None
    """Between two devices of a node for 2-byte values, where their summation has another speed than that of 4-byte
    values."""
    has_trees: bool = True
    """Whether the library has tree and hierarchical all-reduces, as NCCL has; gloo has one ring over all devices."""

    def all_reduce_s(self, num_bytes: Number, num_devices: int) -> Number:
        """Seconds of the fastest algorithm that the library has for this size, as NCCL chooses."""
        times = self._ring_times(num_bytes, num_devices)
        if self.has_trees and num_devices <= self.devices_per_node:
            times.append(tree(num_bytes, num_devices, self.within))
        elif self.has_trees:
            times.append(self._hierarchical_s(num_bytes, num_devices, tree))
        return _minimum(times)

    def all_gather_s(self, num_bytes: Number, num_devices: int) -> Number:
        """Seconds of an all-gather, or of a reduce-scatter: half of a ring all-reduce. NCCL has no tree for either
        (nccl/src/graph/tuning.cc, ncclTopoTuneModel), and its PAT (2.23) only for nodes with one device."""
        return _minimum(self._ring_times(num_bytes, num_devices)) / 2

    def _ring_times(self, num_bytes: Number, num_devices: int) -> list[Number]:
        """Seconds of an all-reduce in one ring over all devices, and in rings within and between the nodes."""
        if num_devices <= self.devices_per_node:
            return [ring(num_bytes, num_devices, self.within)]
        flat_s = ring(num_bytes, num_devices, self._slowest_link())
        return [flat_s, self._hierarchical_s(num_bytes, num_devices, ring)] if self.has_trees else [flat_s]

    def _hierarchical_s(self, num_bytes: Number, num_devices: int, between_nodes: AllReduceModel) -> Number:
        num_nodes = math.ceil(num_devices / self.devices_per_node)
        return hierarchical(num_bytes, self.devices_per_node, num_nodes, self.within, self.between, between_nodes)

    def _slowest_link(self) -> Link:
        """The slowest link of one ring over all devices. The ring leaves each node through one device only, which then
        has the node's whole network."""
        return Link(
            numpy.maximum(self.within.latency_s, self.between.latency_s),
            numpy.minimum(self.within.bytes_per_s, self.between.bytes_per_s * self.devices_per_node),
        )

    def slowed(self, step: StepTimes, num_devices: int) -> StepTimes:
        """The step as it is computed on `num_devices` devices at once, without communication."""
        if num_devices == 1:
            return step
        return dataclasses.replace(
            step,
            forward_s=self.slowdown * step.forward_s,
            backward_s=self.slowdown * step.backward_s,
            other_s=self.slowdown * step.other_s,
            fixed_s=self.slowdown * step.fixed_s,
        )


@dataclasses.dataclass(frozen=True)
class StrategyOptions:
    """What a run can choose."""

    bucket_cap_mb: float = 0.0
    """DDP's buckets in MiB; 0: PyTorch's defaults."""
    local_period: int = 4
    """Local SGD: steps between two averages."""
    num_stages: int = 0
    """Of a pipeline; 0: the devices of a node."""
    microbatches: int = 0
    """Of a pipeline's step; 0: the least multiple of the stages from 4 on."""


StepTimeModel = Callable[[StepTimes, Cluster, int, StrategyOptions], Number]
"""A strategy: (step, cluster, number of devices, options) -> seconds of a step."""


def _minimum(times: Sequence[Number]) -> Number:
    least = times[0]
    for seconds in times[1:]:
        least = numpy.minimum(least, seconds)
    return least


def ddp(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> Number:
    """Each bucket is all-reduced once its last gradient is ready, while the backward pass goes on."""
    return _bucketed_s(step, cluster, num_devices, options, 1.0)


def ddp_compressed(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> Number:
    """DDP whose gradients travel as 2-byte values. The casts take no time, unless the measured step contains them."""
    if cluster.half_precision is not None:
        cluster = dataclasses.replace(cluster, within=cluster.half_precision)
    return _bucketed_s(step, cluster, num_devices, options, 0.5)


def _bucketed_s(
    step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions, bytes_scale: float
) -> Number:
    step = cluster.slowed(step, num_devices)
    messages = [
        (ready * step.backward_s, cluster.all_reduce_s(bytes_scale * num_bytes, num_devices))
        for num_bytes, ready in ddp_buckets(step.gradients, options.bucket_cap_mb)
    ]
    wait_s = step.spread_s * expected_maximum(num_devices)
    return step.seconds - step.backward_s + overlapped_s(step.backward_s, messages, cluster.contention) + wait_s


def local_sgd(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> Number:
    """All weights are averaged once a period, without overlap. Waits within a period partly cancel out."""
    step, period = cluster.slowed(step, num_devices), options.local_period
    wait_s = step.spread_s * expected_maximum(num_devices) / math.sqrt(period)
    return step.seconds + cluster.all_reduce_s(step.num_bytes, num_devices) / period + wait_s


def fsdp(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> Number:
    """Each block is gathered while the block before it computes, in the forward pass and again in the backward pass.
    Its gradients are reduce-scattered after its backward pass. All of these are rings."""
    step = cluster.slowed(step, num_devices)
    blocks = model_blocks(step.gradients)
    messages_s = [cluster.all_gather_s(num_bytes, num_devices) for num_bytes in blocks.gradient_bytes]
    forward = [share * step.forward_s for share in blocks.compute_shares]
    backward = [share * step.backward_s for share in reversed(blocks.compute_shares)]
    wait_s = step.spread_s * expected_maximum(num_devices)
    seconds = step.seconds - step.forward_s - step.backward_s + wait_s
    seconds = seconds + _gathered_pass_s(forward, messages_s, cluster.contention, scatters=False)
    return seconds + _gathered_pass_s(backward, messages_s[::-1], cluster.contention, scatters=True)


def _gathered_pass_s(
    computing: Sequence[Number], messages_s: Sequence[Number], contention: Number, *, scatters: bool
) -> Number:
    """Seconds of one pass in which block n + 1 is gathered while block n computes. The link sends one message at a
    time.

    computing: seconds of each block, in the order of the pass. messages_s: seconds to gather or to scatter each.
    """
    computed_at: Number = 0.0
    link_free_at = gathered_at = sent_s = messages_s[0]
    for number, seconds in enumerate(computing):
        starts_at = numpy.maximum(computed_at, gathered_at)
        computed_at = starts_at + seconds
        if number + 1 < len(messages_s):
            link_free_at = gathered_at = numpy.maximum(link_free_at, starts_at) + messages_s[number + 1]
            sent_s = sent_s + messages_s[number + 1]
        if scatters:
            link_free_at = numpy.maximum(link_free_at, computed_at) + messages_s[number]
            sent_s = sent_s + messages_s[number]
    end = numpy.maximum(computed_at, link_free_at)
    exposed_s = end - sum(computing)
    return end + contention * numpy.maximum(0.0, sent_s - exposed_s)


def pipeline_shape(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> tuple[int, int]:
    """(stages, micro-batches). Raises UserError where there are more stages than blocks, the stages do not divide the
    devices, or a micro-batch has less than one image."""
    num_blocks = len({gradient.block for gradient in step.gradients})
    num_stages = options.num_stages or min(cluster.devices_per_node, num_devices, num_blocks)
    if num_stages > num_blocks:
        raise UserError(f"{num_stages} stages, but the model has {num_blocks} blocks to cut between; use fewer stages")
    if num_devices % num_stages:
        raise UserError(f"{num_stages} stages do not divide {num_devices} devices; change one of them")
    num_microbatches = options.microbatches or num_stages * -(-4 // num_stages)
    if (images := step.images * num_stages) < num_microbatches:
        raise UserError(
            f"{num_microbatches} micro-batches of {images:g} images in {num_stages} stages: fewer than one image each"
        )
    return num_stages, num_microbatches


def pipeline_parallel(step: StepTimes, cluster: Cluster, num_devices: int, options: StrategyOptions) -> Number:
    """A pipeline with one stage per device, in (m + p - 1) slots of its slowest stage (p stages, m micro-batches), and
    replicas of the pipeline whose gradients are averaged at the end.

    Raises UserError as pipeline_shape does.
    """
    num_stages, num_microbatches = pipeline_shape(step, cluster, num_devices, options)
    blocks = model_blocks(step.gradients)
    step = cluster.slowed(step, num_devices)
    ends = [*balanced_cuts(tuple(blocks.compute_shares), num_stages), len(blocks.compute_shares)]
    stages = [slice(first, last) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
    largest_share = max(sum(blocks.compute_shares[stage]) for stage in stages)
    # all stages work on the images of all their devices, which the first stage reads
    slot_s = (step.forward_s + step.backward_s) * num_stages * largest_share / num_microbatches
    images = step.images * num_stages / num_microbatches
    link = cluster.within if num_stages <= cluster.devices_per_node else cluster.between
    messages_s = [link.latency_s + blocks.out_bytes[end - 1] * images / link.bytes_per_s for end in ends[:-1]]
    message_s = max(messages_s, key=numpy.mean, default=0.0)
    replicas = dataclasses.replace(cluster, devices_per_node=max(1, cluster.devices_per_node // num_stages))
    stage_bytes = max(sum(blocks.gradient_bytes[stage]) for stage in stages)
    average_s = replicas.all_reduce_s(stage_bytes, num_devices // num_stages)
    wait_s = step.spread_s * expected_maximum(num_devices)
    pipelined_s = (num_microbatches + num_stages - 1) * (slot_s + 2 * message_s)
    return pipelined_s + num_stages * step.other_s + step.fixed_s / num_stages + average_s + wait_s


STEP_TIME_MODELS: dict[str, StepTimeModel] = {
    "ddp": ddp,
    "ddp_compressed": ddp_compressed,
    "fsdp": fsdp,
    "local_sgd": local_sgd,
    "pipeline_parallel": pipeline_parallel,
}
"""By the name of the strategy."""
