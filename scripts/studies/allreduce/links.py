"""What a message between devices takes: the link model of `make bench-allreduce`, and all-reduces made of it.

    from scripts.studies.allreduce.links import Link, fit_link, ring, tree, hierarchical

A message of S bytes takes latency + S / bandwidth (Hockney's alpha and beta). Numbers may be arrays, too: one entry a
draw of what is uncertain. Needs no torch.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy
from scipy.optimize import nnls

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file
from scripts.sets.safe_names import LIMIT_BYTES

Number = float | numpy.ndarray
NUM_DRAWS = 400
NUM_RESAMPLES = 400
SIGMAS = 2 * 1.959964  # between the ends of a normal 95 % interval
CONFIDENCE = (2.5, 97.5)  # percentiles


@dataclasses.dataclass(frozen=True)
class Known:
    """A number with its 95 % interval; both ends are the number itself where nothing is uncertain."""

    value: float
    low: float
    high: float

    def draws(self, rng: numpy.random.Generator) -> numpy.ndarray:
        """float64 [1 + NUM_DRAWS]: the number itself, then draws that have its interval, half of them below the number:
        lognormal with a width to each side, or straight, and not below 0, where the interval reaches 0."""
        sigmas = numpy.concatenate([[0.0], rng.standard_normal(NUM_DRAWS)]) * 2 / SIGMAS  # 1: at an end
        if self.low <= 0:
            away = numpy.where(sigmas < 0, self.value - self.low, self.high - self.value)
            return numpy.maximum(0.0, self.value + sigmas * away)
        widths = numpy.where(sigmas < 0, math.log(self.value / self.low), math.log(self.high / self.value))
        return self.value * numpy.exp(sigmas * widths)


def exactly(value: float) -> Known:
    return Known(value, value, value)


def about(value: float, share: float) -> Known:
    """A number of a data sheet or a paper, which may be off by `share` of it to both sides."""
    return Known(value, value * (1 - share), value * (1 + share))


def estimate_of(draws: numpy.ndarray) -> Known:
    """What `draws`, [1 + NUM_DRAWS], say: the first is the number, the others are its interval."""
    low, high = numpy.percentile(draws[1:], CONFIDENCE)
    return Known(float(draws[0]), float(low), float(high))


@dataclasses.dataclass(frozen=True)
class Link:
    """One device's way to the next: seconds that a message takes at least, and bytes/s, both ways at once."""

    latency_s: Number
    bytes_per_s: Number


def ring(num_bytes: Number, num_devices: int, link: Link) -> Number:
    """Seconds of an all-reduce in a ring: 2 (n - 1) messages of S / n bytes, one after the other.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. Half of it is a reduce-scatter, half an all-gather.
    """
    return 2 * (num_devices - 1) * (link.latency_s + num_bytes / (num_devices * link.bytes_per_s))


def tree(num_bytes: Number, num_devices: int, link: Link) -> Number:
    """Seconds of an all-reduce up and down a pipelined double binary tree: 2 ceil(log2 n) messages deep, and every
    device sends all S bytes twice.

    Sanders, Speck and Träff, Parallel Computing 35, 2009; NCCL has it since 2.4.
    """
    if num_devices == 1:
        return 0.0 * num_bytes
    return 2 * math.ceil(math.log2(num_devices)) * link.latency_s + 2 * num_bytes / link.bytes_per_s


def hierarchical(num_bytes: Number, local: int, nodes: int, within: Link, between: Link, across=ring) -> Number:
    """Seconds of an all-reduce in three parts: reduce-scatter in each node of `local` devices, then each device's
    S / local bytes `across` the nodes, all at once, then all-gather in each node. `between` is one device's share."""
    return ring(num_bytes, local, within) + across(num_bytes / local, nodes, between)


def bandwidths(num_bytes: float, seconds: float, num_ranks: int) -> tuple[float, float]:
    """(algorithm, bus) bandwidth in bytes/s as nccl-tests defines them for an all-reduce (doc/PERFORMANCE.md):
    S / t, and that times 2 (n - 1) / n, which a ring's links carry."""
    algorithm = num_bytes / seconds
    return algorithm, algorithm * 2 * (num_ranks - 1) / num_ranks


@dataclasses.dataclass(frozen=True)
class Fit:
    """A measured link. busy: the share of its core that a rank's exchange takes while it lasts. With GPUs the core only
    waits for them, so that it says nothing of computing."""

    path: str
    ranks: int
    latency_s: Known
    bytes_per_s: Known
    busy: Known


def fit_link(path: str, ranks: int, sizes: Sequence[int], seconds: numpy.ndarray, cpu_s: numpy.ndarray) -> Fit:
    """The link that a ring of `ranks` would need to take these times.

    seconds, cpu_s: [num_rounds, num_sizes], of one all-reduce, by the clock and in CPU time of a rank. Least squares of
    relative errors, latency not below 0; intervals by resampling whole rounds. Raises UserError with fewer than 2.
    """
    if len(seconds) < 2:
        raise UserError(f"{path}: one round has no spread; measure 2 or more")
    rng = numpy.random.default_rng(0)
    picks = [numpy.arange(len(seconds)), *rng.integers(len(seconds), size=(NUM_RESAMPLES, len(seconds)))]
    found = numpy.array([fit_numbers(ranks, numpy.asarray(sizes, float), seconds[pick], cpu_s[pick]) for pick in picks])
    low, high = numpy.percentile(found[1:], CONFIDENCE, axis=0)
    ends = numpy.vstack([found[0], numpy.minimum(low, found[0]), numpy.maximum(high, found[0])])
    return Fit(path, ranks, *(Known(*map(float, values)) for values in ends.T))


def fit_numbers(
    ranks: int, sizes: numpy.ndarray, seconds: numpy.ndarray, cpu_s: numpy.ndarray
) -> tuple[float, float, float]:
    """latency_s, bytes_per_s and busy of fit_link, without intervals. Where sizes are too small to tell, a hundredth of
    the largest one's time is its bytes', so that no bandwidth is without end."""
    mean_s = seconds.mean(axis=0)
    (start_s, s_per_byte), _ = nnls(numpy.column_stack([1 / mean_s, sizes / mean_s]), numpy.ones(len(sizes)))
    s_per_byte = max(s_per_byte, 0.01 * mean_s[sizes.argmax()] / sizes.max())
    messages = 2 * (ranks - 1)
    large = sizes >= sizes.max() / 64  # in small ones the CPU waits for the message to come round
    busy = min(1.0, float(cpu_s[:, large].sum() / seconds[:, large].sum()))
    return start_s / messages, messages / (ranks * s_per_byte), busy


COLUMNS = (
    "path", "ranks", "latency_s", "latency_s_low", "latency_s_high", "bytes_per_s", "bytes_per_s_low",
    "bytes_per_s_high", "busy", "busy_low", "busy_high",
)  # fmt: skip


def row_of(fit: Fit) -> dict:
    """The fit as a row of links.csv."""
    row = {"path": fit.path, "ranks": fit.ranks}
    for name in ("latency_s", "bytes_per_s", "busy"):
        known = getattr(fit, name)
        row |= {name: known.value, f"{name}_low": known.low, f"{name}_high": known.high}
    return row


def read_links(path: Path) -> dict[str, Fit]:
    """The fits of a links.csv, by path, the last of each. Raises UserError where it is missing or impossible."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_regular_file(path, LIMIT_BYTES).decode("utf-8"), newline="")))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; run make bench-allreduce, or name one: LINK=") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no table ({error}); run make bench-allreduce again") from None
    if not rows or (lacks := [name for name in COLUMNS if name not in rows[0]]):
        what = f"has no column {lacks[0]}" if rows else "has no rows"
        raise UserError(f"{path} {what}; run make bench-allreduce again")
    return {row["path"]: _read_row(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2)}


def _read_row(row: dict, place: str) -> Fit:
    if not (row["ranks"] or "").isdecimal() or int(row["ranks"]) < 2:
        raise UserError(f"{place}: ranks is {row['ranks']!r}, not a number from 2 on; run make bench-allreduce again")
    known = {}
    for name in ("latency_s", "bytes_per_s", "busy"):
        try:
            known[name] = Known(*(float(row[column]) for column in (name, f"{name}_low", f"{name}_high")))
            if not all(map(math.isfinite, dataclasses.astuple(known[name]))):
                raise ValueError
        except (TypeError, ValueError):
            raise UserError(f"{place}: {name} is no number; run make bench-allreduce again") from None
    if min(dataclasses.astuple(known["bytes_per_s"])) <= 0:
        raise UserError(f"{place}: bytes_per_s is {row['bytes_per_s']} [{row['bytes_per_s_low']}, ...], but a link "
                        "carries more than 0; run make bench-allreduce again")  # fmt: skip
    if known["latency_s"].low < 0 or known["busy"].low < 0 or known["busy"].high > 1:
        raise UserError(f"{place}: latency_s must be 0 or more, and busy from 0 to 1; run make bench-allreduce again")
    for name, number in known.items():
        if not number.low <= number.value <= number.high:
            raise UserError(f"{place}: {name} is {number.value:g}, outside of its interval [{number.low:g}, "
                            f"{number.high:g}]; run make bench-allreduce again")  # fmt: skip
    return Fit(row["path"], int(row["ranks"]), **known)
