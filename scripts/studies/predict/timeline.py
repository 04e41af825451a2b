"""The timeline of a backward pass: when each gradient is ready, DDP's buckets, blocks, and communication overlap.

Times may be arrays with one entry per Monte Carlo draw. Needs no torch.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy
from scipy.integrate import quad
from scipy.special import ndtr

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.uncertain_value import Number

MIB = 2**20
FIRST_BUCKET_MIB, BUCKET_MIB = 1, 25  # DDP's defaults


@dataclasses.dataclass(frozen=True)
class Gradient:
    """The gradient of one parameter, a row of gradients.csv."""

    name: str
    block: str
    """The block of layers that it is in. FSDP gathers a block at once; a pipeline is cut between blocks."""
    num_bytes: int
    ready: float
    """The fraction of the backward pass after which the gradient is complete, 0 to 1."""
    out_bytes: int = 0
    """Bytes of one image's activations at the end of the block."""


@dataclasses.dataclass(frozen=True)
class Blocks:
    """The blocks of a model, in the order of the forward pass."""

    compute_shares: list[float]
    """The fraction of the computing in each block; the sum is 1."""
    gradient_bytes: list[int]
    out_bytes: list[int]
    """Bytes of one image's activations at the end of each block."""


def ddp_buckets(gradients: Sequence[Gradient], bucket_cap_mb: float = 0.0) -> list[tuple[int, float]]:
    """(bytes, ready) of each bucket that DDP uses after its first step.

    DDP takes the gradients in the order in which they are ready, and closes a bucket once it has reached its limit
    (torch/csrc/distributed/c10d/reducer.cpp, rebuild_buckets). bucket_cap_mb: the limit in MiB; 0: PyTorch's defaults.
    """
    first_limit, limit = (bucket_cap_mb * MIB,) * 2 if bucket_cap_mb else (FIRST_BUCKET_MIB * MIB, BUCKET_MIB * MIB)
    buckets: list[tuple[int, float]] = []
    open_bytes, ready = 0, 0.0
    for gradient in in_order_of_readiness(gradients):
        open_bytes, ready = open_bytes + gradient.num_bytes, gradient.ready
        if open_bytes >= (limit if buckets else first_limit):
            buckets.append((open_bytes, ready))
            open_bytes = 0
    return [*buckets, (open_bytes, ready)] if open_bytes else buckets


def model_blocks(gradients: Sequence[Gradient]) -> Blocks:
    """The blocks that the gradients are in. Raises UserError where the gradients of two blocks alternate."""
    ready: dict[str, float] = {}
    num_bytes: dict[str, int] = {}
    out_bytes: dict[str, int] = {}
    for gradient in in_order_of_readiness(gradients):
        ready[gradient.block] = gradient.ready
        num_bytes[gradient.block] = num_bytes.get(gradient.block, 0) + gradient.num_bytes
        out_bytes[gradient.block] = gradient.out_bytes
    ends = list(ready.values())
    if ends != sorted(ends):
        raise UserError("the gradients of two blocks alternate; measure them again, on a machine that is not busy")
    shares = [(end - start) / ends[-1] for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]
    return Blocks(shares[::-1], [*num_bytes.values()][::-1], [*out_bytes.values()][::-1])


def in_order_of_readiness(gradients: Sequence[Gradient]) -> list[Gradient]:
    return sorted(gradients, key=lambda gradient: gradient.ready)


def overlapped_s(compute_s: Number, messages: Sequence[tuple[Number, Number]], contention: Number) -> Number:
    """Seconds until the computing and all messages are done.

    messages: (seconds of computing before the message can start, seconds that the message takes). Messages are sent one
    after the other. contention: the fraction of its speed that computing loses while a message is under way.
    """
    now_s, computed_s = 0.0 * compute_s, 0.0 * compute_s
    for ready_s, message_s in messages:
        idle_s = numpy.maximum(0.0, ready_s - computed_s)
        now_s = now_s + idle_s + message_s
        computed_s = numpy.minimum(compute_s, computed_s + idle_s + (1 - contention) * message_s)
    return now_s + (compute_s - computed_s)


@functools.cache
def expected_maximum(num_devices: int) -> float:
    """The expected maximum of `num_devices` standard normal numbers: how many standard deviations later than the mean
    the slowest device is.

    E[max] is the integral of 1 - F^n over x > 0, less the integral of F^n over x < 0.
    """
    maximum, _ = quad(lambda x: 1 - ndtr(x) ** num_devices - ndtr(-x) ** num_devices, 0, 12)
    return maximum
