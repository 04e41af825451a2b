"""How long a step takes on more devices than are at hand: each strategy's timeline, of what one device was seen to do.

    from scripts.studies.predict.step_model import Choices, Machine, Step, ddp

A step's computing is measured on one device; its messages are worked out from the gradients' sizes, the moments at
which the backward pass has them, and the links (studies/allreduce/links.py). Numbers may be arrays of draws. A strategy
is a function (step, machine, number of devices, choices) -> seconds of a step. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy

from benchmarks.common.model.cuts import balanced_cuts
from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Link, Number, hierarchical, ring, tree
from scripts.studies.predict.timeline import Gradient, blocks, buckets, overlap, slowest_of


@dataclasses.dataclass(frozen=True)
class Step:
    """What one device does in a step by itself, in seconds. fixed: optimizer and all that no batch size changes.
    spread: standard deviation of one step between devices that start together."""

    images: float
    forward: Number
    backward: Number
    other: Number
    fixed: Number
    gradients: tuple[Gradient, ...]
    spread: Number = 0.0

    @property
    def seconds(self) -> Number:
        return self.forward + self.backward + self.other + self.fixed

    @property
    def num_bytes(self) -> int:
        return sum(gradient.num_bytes for gradient in self.gradients)

    def on(self, images: float) -> "Step":
        """The same with another number of images: in proportion, which is too good where these are few."""
        times = images / self.images
        scaled = {name: times * getattr(self, name) for name in ("forward", "backward", "other", "spread")}
        return dataclasses.replace(self, images=images, **scaled)


@dataclasses.dataclass(frozen=True)
class Machine:
    """Nodes of some devices. between: one device's share of its node's network. busy: the share of computing that an
    exchange takes away while both are under way. slowdown: of computing, by neighbours that compute. halves: the link
    within a node, and busy, for 2-byte values where these are summed at another speed. trees: the library has them, and
    rings in each node and between nodes, as NCCL has."""

    devices_per_node: int
    within: Link
    between: Link
    busy: Number = 0.0
    slowdown: Number = 1.0
    halves: tuple[Link, Number] | None = None
    trees: bool = True

    def all_reduce(self, num_bytes: Number, num_devices: int) -> Number:
        """Seconds: the fastest of the ways that the library has, as NCCL chooses by size."""
        ways = self._rings(num_bytes, num_devices)
        if self.trees and num_devices <= self.devices_per_node:
            ways.append(tree(num_bytes, num_devices, self.within))
        elif self.trees:
            ways.append(self._by_nodes(num_bytes, num_devices, tree))
        return _least(ways)

    def gather(self, num_bytes: Number, num_devices: int) -> Number:
        """Seconds of an all-gather, or of a reduce-scatter: half of an all-reduce in rings. NCCL has no tree for either
        (nccl/src/graph/tuning.cc, ncclTopoTuneModel), and its PAT of 2.23 only for nodes of one device."""
        return _least(self._rings(num_bytes, num_devices)) / 2

    def _rings(self, num_bytes: Number, num_devices: int) -> list[Number]:
        """Seconds of an all-reduce in one ring, and in rings within nodes and between them."""
        if num_devices <= self.devices_per_node:
            return [ring(num_bytes, num_devices, self.within)]
        flat = ring(num_bytes, num_devices, self._flat())
        return [flat, self._by_nodes(num_bytes, num_devices, ring)] if self.trees else [flat]

    def _by_nodes(self, num_bytes: Number, num_devices: int, across: Callable) -> Number:
        local, nodes = self.devices_per_node, math.ceil(num_devices / self.devices_per_node)
        return hierarchical(num_bytes, local, nodes, self.within, self.between, across)

    def _flat(self) -> Link:
        """The slowest link of one ring over all devices, which leaves each node by one device only."""
        return Link(
            numpy.maximum(self.within.latency_s, self.between.latency_s),
            numpy.minimum(self.within.bytes_per_s, self.between.bytes_per_s * self.devices_per_node),
        )

    def computing(self, step: Step, num_devices: int) -> Step:
        """The step as computed beside `num_devices` - 1 others."""
        if num_devices == 1:
            return step
        names = ("forward", "backward", "other", "fixed")
        return dataclasses.replace(step, **{name: self.slowdown * getattr(step, name) for name in names})


@dataclasses.dataclass(frozen=True)
class Choices:
    """What a run may choose: buckets in MiB (0: 1 for the first and 25 for the others), local SGD's period, a
    pipeline's stages (0: a node's devices) and micro-batches (0: the least multiple of the stages from 4 on)."""

    bucket_cap_mb: float = 0.0
    local_period: int = 4
    num_stages: int = 0
    microbatches: int = 0


Strategy = Callable[[Step, Machine, int, Choices], Number]


def _least(ways: Sequence[Number]) -> Number:
    least = ways[0]
    for way in ways[1:]:
        least = numpy.minimum(least, way)
    return least


def ddp(step: Step, machine: Machine, num_devices: int, choices: Choices) -> Number:
    return _bucketed(step, machine, num_devices, choices, 1.0)


def ddp_compressed(step: Step, machine: Machine, num_devices: int, choices: Choices) -> Number:
    """Every value travels as two bytes; the casts are taken as free, unless the measured step has them."""
    if machine.halves is not None:
        within, busy = machine.halves
        machine = dataclasses.replace(machine, within=within, busy=busy)
    return _bucketed(step, machine, num_devices, choices, 0.5)


def _bucketed(step: Step, machine: Machine, num_devices: int, choices: Choices, scale: float) -> Number:
    step = machine.computing(step, num_devices)
    messages = [
        (ready * step.backward, machine.all_reduce(scale * num_bytes, num_devices))
        for num_bytes, ready in buckets(step.gradients, choices.bucket_cap_mb)
    ]
    waits = step.spread * slowest_of(num_devices)
    return step.seconds - step.backward + overlap(step.backward, messages, machine.busy) + waits


def local_sgd(step: Step, machine: Machine, num_devices: int, choices: Choices) -> Number:
    """An average of all weights every few steps, with nothing beside it; waits of a period even out in part."""
    step, period = machine.computing(step, num_devices), choices.local_period
    waits = step.spread * slowest_of(num_devices) / math.sqrt(period)
    return step.seconds + machine.all_reduce(step.num_bytes, num_devices) / period + waits


def fsdp(step: Step, machine: Machine, num_devices: int, choices: Choices) -> Number:
    """Blocks are gathered one ahead, before forward and again before backward; gradients are scattered after theirs.
    In rings both."""
    step = machine.computing(step, num_devices)
    shares, sizes, _ = blocks(step.gradients)
    half = [machine.gather(size, num_devices) for size in sizes]  # or a scatter
    waits = step.spread * slowest_of(num_devices)
    passes = ((step.forward, [*range(len(sizes))], False), (step.backward, [*reversed(range(len(sizes)))], True))
    seconds = step.seconds - step.forward - step.backward + waits
    for compute_s, order, scatters in passes:
        computing = [shares[n] * compute_s for n in order]
        seconds = seconds + _gathered(computing, [half[n] for n in order], scatters, machine)
    return seconds


def _gathered(computing: list[Number], gathers: list[Number], scatters: bool, machine: Machine) -> Number:
    """Seconds of one pass: block n + 1 is gathered while block n computes; one link, messages in order."""
    done, link, sent, there = 0.0, gathers[0], gathers[0], gathers[0]
    for number, seconds in enumerate(computing):
        began = numpy.maximum(done, there)
        done = began + seconds
        if number + 1 < len(gathers):
            link = there = numpy.maximum(link, began) + gathers[number + 1]
            sent = sent + gathers[number + 1]
        if scatters:
            link = numpy.maximum(link, done) + gathers[number]
            sent = sent + gathers[number]
    end = numpy.maximum(done, link)
    exposed = end - sum(computing)
    return end + machine.busy * numpy.maximum(0.0, sent - exposed)


def pipeline_shape(step: Step, machine: Machine, num_devices: int, choices: Choices) -> tuple[int, int]:
    """Stages and micro-batches. Raises UserError where there are more stages than blocks, stages do not divide the
    devices, or a micro-batch has less than an image."""
    num_blocks = len({gradient.block for gradient in step.gradients})
    stages = choices.num_stages or min(machine.devices_per_node, num_devices, num_blocks)
    if stages > num_blocks:
        raise UserError(f"{stages} stages, but the model has {num_blocks} blocks to cut between; use fewer stages")
    if num_devices % stages:
        raise UserError(f"{stages} stages do not divide {num_devices} devices; change one of them")
    parts = choices.microbatches or stages * -(-4 // stages)
    if (images := step.images * stages) < parts:
        raise UserError(f"{parts} micro-batches of {images:g} images in {stages} stages: fewer than one image each")
    return stages, parts


def pipeline_parallel(step: Step, machine: Machine, num_devices: int, choices: Choices) -> Number:
    """Stages of a pipeline on as many devices, and copies of it whose gradients are averaged at the end.

    Raises UserError as pipeline_shape does.
    """
    stages, parts = pipeline_shape(step, machine, num_devices, choices)
    shares, sizes, outs = blocks(step.gradients)
    step = machine.computing(step, num_devices)
    ends = [*balanced_cuts(tuple(shares), stages), len(shares)]
    cuts = list(zip([0, *ends[:-1]], ends, strict=True))
    largest = max(sum(shares[first:last]) for first, last in cuts)
    # all stages work on the images of all their devices, which the first one reads
    slot = (step.forward + step.backward) * stages * largest / parts
    images = step.images * stages / parts
    link = machine.within if stages <= machine.devices_per_node else machine.between
    message = max((link.latency_s + outs[end - 1] * images / link.bytes_per_s for end in ends[:-1]), key=numpy.mean,
                  default=0.0)  # fmt: skip
    copies = dataclasses.replace(machine, devices_per_node=max(1, machine.devices_per_node // stages))
    average = copies.all_reduce(max(sum(sizes[first:last]) for first, last in cuts), num_devices // stages)
    waits = step.spread * slowest_of(num_devices)
    return (parts + stages - 1) * (slot + 2 * message) + stages * step.other + step.fixed / stages + average + waits


STRATEGIES: tuple[Strategy, ...] = (ddp, ddp_compressed, fsdp, local_sgd, pipeline_parallel)
