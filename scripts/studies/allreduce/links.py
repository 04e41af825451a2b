"""The link model: how long a message and an all-reduce take, and its fit to measured ones.

A message of S bytes takes latency + S / bandwidth (Hockney, Parallel Computing 20, 1994: alpha and beta). Every
formula accepts arrays, too. Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

import numpy
from scipy.optimize import nnls

NUM_RESAMPLES = 400
Number = float | numpy.ndarray


@dataclasses.dataclass(frozen=True)
class UncertainValue:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection of one device to the next: latency of a message in seconds, and bytes/s in each direction."""

    latency_s: Number
    bytes_per_s: Number


def ring(num_bytes: Number, num_devices: int, link: Link) -> Number:
    """Seconds of a ring all-reduce: 2 (n - 1) messages of S / n bytes, one after the other.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009.
    """
    return 2 * (num_devices - 1) * (link.latency_s + num_bytes / (num_devices * link.bytes_per_s))


def bandwidths(num_bytes: Number, seconds: Number, num_ranks: int) -> tuple[Number, Number]:
    """(algorithm bandwidth, bus bandwidth) of an all-reduce in bytes/s.

    As nccl-tests defines them (doc/PERFORMANCE.md): S / t, and S / t times 2 (n - 1) / n, which is what each link of a
    ring carries.
    """
    algorithm = num_bytes / seconds
    return algorithm, algorithm * 2 * (num_ranks - 1) / num_ranks


@dataclasses.dataclass(frozen=True)
class LinkFit:
    """A link that was fitted to measured all-reduces."""

    path: str
    """Library and type, such as gloo, or "nccl, bf16"."""
    ranks: int
    latency_s: UncertainValue
    bytes_per_s: UncertainValue
    busy: UncertainValue
    """CPU time over wall-clock time of a rank during large all-reduces, at most 1. With GPUs the CPU only waits, so
    that this number says nothing about computing on the GPU."""


def fit_link(path: str, ranks: int, sizes: Sequence[int], seconds: numpy.ndarray, cpu_s: numpy.ndarray) -> LinkFit:
    """The link with which a ring of `ranks` would take these times.

    seconds, cpu_s: [num_rounds, num_sizes], wall-clock time and a rank's CPU time of one all-reduce. The fit minimises
    the squares of relative errors, with latency >= 0. Intervals are percentiles of a bootstrap over whole rounds.
    """
    rng = numpy.random.default_rng(0)
    picks = [numpy.arange(len(seconds)), *rng.integers(len(seconds), size=(NUM_RESAMPLES, len(seconds)))]
    bytes_of_sizes = numpy.asarray(sizes, float)
    fits = numpy.array([estimate_link(ranks, bytes_of_sizes, seconds[pick], cpu_s[pick]) for pick in picks])
    low, high = numpy.percentile(fits[1:], (2.5, 97.5), axis=0)
    ends = numpy.vstack([fits[0], numpy.minimum(low, fits[0]), numpy.maximum(high, fits[0])])
    latency_s, bytes_per_s, busy = (UncertainValue(*map(float, values)) for values in ends.T)
    return LinkFit(path, ranks, latency_s, bytes_per_s, busy)


def estimate_link(
    ranks: int, sizes: numpy.ndarray, seconds: numpy.ndarray, cpu_s: numpy.ndarray
) -> tuple[float, float, float]:
    """latency_s, bytes_per_s and busy of fit_link, without intervals.

    Where the sizes are too small to show a bandwidth, 1 % of the largest size's time is attributed to its bytes, so
    that the bandwidth is finite.
    """
    mean_s = seconds.mean(axis=0)
    (start_s, s_per_byte), _ = nnls(numpy.column_stack([1 / mean_s, sizes / mean_s]), numpy.ones(len(sizes)))
    s_per_byte = max(s_per_byte, 0.01 * mean_s[sizes.argmax()] / sizes.max())
    num_messages = 2 * (ranks - 1)
    large = sizes >= sizes.max() / 64  # during small all-reduces the CPU mostly waits for messages
    busy = min(1.0, float(cpu_s[:, large].sum() / seconds[:, large].sum()))
    return start_s / num_messages, num_messages / (ranks * s_per_byte), busy


def links_row(fit: LinkFit) -> dict[str, object]:
    """The fit as a row of links.csv."""
    row: dict[str, object] = {"path": fit.path, "ranks": fit.ranks}
    for name in ("latency_s", "bytes_per_s", "busy"):
        fitted = getattr(fit, name)
        row |= {name: fitted.value, f"{name}_low": fitted.low, f"{name}_high": fitted.high}
    return row
