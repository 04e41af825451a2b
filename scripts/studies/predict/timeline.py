"""What a backward pass hands over, and when: gradients, DDP's buckets of them, blocks; and messages beside computing.

    from scripts.studies.predict.timeline import Gradient, blocks, buckets, overlap, slowest_of

Numbers may be arrays of draws. Needs no torch.
"""

import dataclasses
import functools
from collections.abc import Sequence

import numpy
from scipy.integrate import quad
from scipy.special import ndtr

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Number

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Gradient:
    """A parameter's gradient. ready: the share of the backward pass after which it is there. block: what FSDP gathers
    and a pipeline moves as one; out_bytes: of one image's activations, where that block ends."""

    name: str
    block: str
    num_bytes: int
    ready: float
    out_bytes: int = 0


def buckets(gradients: Sequence[Gradient], bucket_cap_mb: float = 0.0) -> list[tuple[int, float]]:
    """(bytes, ready) of DDP's buckets after its first step: gradients in the order in which they come, a bucket is
    full when it holds its limit or more (torch/csrc/distributed/c10d/reducer.cpp, rebuild_buckets)."""
    first, cap = (bucket_cap_mb * MIB,) * 2 if bucket_cap_mb else (1 * MIB, 25 * MIB)
    found, held = [], 0
    for gradient in sorted(gradients, key=lambda each: each.ready):
        held += gradient.num_bytes
        if held >= (cap if found else first):
            found.append((held, gradient.ready))
            held = 0
    return [*found, (held, gradient.ready)] if held else found


def blocks(gradients: Sequence[Gradient]) -> tuple[list[float], list[int], list[int]]:
    """In the order of the forward pass: the share of computing in each block, its bytes of gradients, and out_bytes."""
    last, sizes, outs = {}, {}, {}
    for gradient in sorted(gradients, key=lambda each: each.ready):
        last[gradient.block] = gradient.ready
        sizes[gradient.block] = sizes.get(gradient.block, 0) + gradient.num_bytes
        outs[gradient.block] = gradient.out_bytes
    ends = list(last.values())
    if ends != sorted(ends):
        raise UserError("gradients of two blocks come mixed; measure them again, on a machine that is not busy")
    shares = [(end - start) / ends[-1] for start, end in zip([0.0, *ends[:-1]], ends, strict=True)]
    return shares[::-1], [*sizes.values()][::-1], [*outs.values()][::-1]


def overlap(compute_s: Number, messages: Sequence[tuple[Number, Number]], busy: Number) -> Number:
    """Seconds until computing and messages are over. messages: (computing done before it can leave, seconds it takes),
    sent one after the other. Under way, one takes `busy` of the computing's speed."""
    now, done = 0.0 * compute_s, 0.0 * compute_s
    for ready_s, seconds in messages:
        idle = numpy.maximum(0.0, ready_s - done)
        now = now + idle + seconds
        done = numpy.minimum(compute_s, done + idle + (1 - busy) * seconds)
    return now + (compute_s - done)


@functools.cache
def slowest_of(num_devices: int) -> float:
    """Expected largest of as many standard normal numbers: how many standard deviations the last device is late.

    E[max] is the integral of 1 - F^n over x > 0 less that of F^n over x < 0.
    """
    late, _ = quad(lambda x: 1 - ndtr(x) ** num_devices - ndtr(-x) ** num_devices, 0, 12)
    return late
