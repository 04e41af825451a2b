"""The link model: how long a message and an all-reduce take. The study allreduce fits it, the study predict uses it.

A message of S bytes takes latency + S / bandwidth (Hockney, Parallel Computing 20, 1994: alpha and beta). Every
formula also accepts arrays with one entry per Monte Carlo draw. Needs no torch.
"""

import csv
import dataclasses
import io
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy
from scipy.optimize import nnls

from benchmarks.common.store.safe_names import LIMIT_BYTES
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_set_file
from scripts.studies.allreduce.uncertain_value import PERCENTILES, Number, UncertainValue

NUM_RESAMPLES = 400
FITTED = ("latency_s", "bytes_per_s", "busy")  # what a fit estimates, each with its interval
LINKS_COLUMNS = (
    "path", "ranks", "latency_s", "latency_s_low", "latency_s_high", "bytes_per_s", "bytes_per_s_low",
    "bytes_per_s_high", "busy", "busy_low", "busy_high",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Link:
    """The connection of one device to the next: latency of a message in seconds, and bytes/s in each direction."""

    latency_s: Number
    bytes_per_s: Number


AllReduceModel = Callable[[Number, int, Link], Number]
"""(bytes, number of devices, link) -> seconds of an all-reduce."""


def ring(num_bytes: Number, num_devices: int, link: Link) -> Number:
    """Seconds of a ring all-reduce: 2 (n - 1) messages of S / n bytes, one after the other.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009. Half of the time is a reduce-scatter, half an all-gather.
    """
    return 2 * (num_devices - 1) * (link.latency_s + num_bytes / (num_devices * link.bytes_per_s))


def tree(num_bytes: Number, num_devices: int, link: Link) -> Number:
    """Seconds of an all-reduce over a pipelined double binary tree: the latency of 2 ceil(log2 n) messages, and the
    time in which a device sends all S bytes twice.

    Sanders, Speck and Träff, Parallel Computing 35, 2009. NCCL implements it since 2.4.
    """
    if num_devices == 1:
        return 0.0 * num_bytes
    return 2 * math.ceil(math.log2(num_devices)) * link.latency_s + 2 * num_bytes / link.bytes_per_s


def hierarchical(
    num_bytes: Number,
    devices_per_node: int,
    num_nodes: int,
    within: Link,
    between: Link,
    between_nodes: AllReduceModel = ring,
) -> Number:
    """Seconds of an all-reduce in three parts: a reduce-scatter within each node, then an all-reduce of each device's
    S / devices_per_node bytes between the nodes, all devices at once, then an all-gather within each node.

    within: the link between two devices of a node. between: one device's share of its node's network.
    """
    within_s = ring(num_bytes, devices_per_node, within)
    return within_s + between_nodes(num_bytes / devices_per_node, num_nodes, between)


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
    Raises UserError with fewer than 2 rounds.
    """
    if len(seconds) < 2:
        raise UserError(f"{path}: one round gives no interval; measure 2 or more")
    rng = numpy.random.default_rng(0)
    picks = [numpy.arange(len(seconds)), *rng.integers(len(seconds), size=(NUM_RESAMPLES, len(seconds)))]
    bytes_of_sizes = numpy.asarray(sizes, float)
    fits = numpy.array([estimate_link(ranks, bytes_of_sizes, seconds[pick], cpu_s[pick]) for pick in picks])
    low, high = numpy.percentile(fits[1:], PERCENTILES, axis=0)
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
    for name in FITTED:
        fitted = getattr(fit, name)
        row |= {name: fitted.value, f"{name}_low": fitted.low, f"{name}_high": fitted.high}
    return row


def read_links(path: Path) -> dict[str, LinkFit]:
    """The fits of a links.csv by their path; of several with one path the last. Raises UserError where the file is
    missing or a number in it is impossible."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_set_file(path, LIMIT_BYTES).decode("utf-8"), newline="")))
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror}; run ./bench study allreduce, or name one: --link"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no table ({error}); run ./bench study allreduce again") from None
    if not rows or (missing := [name for name in LINKS_COLUMNS if name not in rows[0]]):
        problem = f"has no column {missing[0]}" if rows else "has no rows"
        raise UserError(f"{path} {problem}; run ./bench study allreduce again")
    return {row["path"]: _read_row(row, f"{path}, line {number}") for number, row in enumerate(rows, start=2)}


def _read_row(row: Mapping[str, str], line: str) -> LinkFit:
    if not (row["ranks"] or "").isdecimal() or int(row["ranks"]) < 2:
        raise UserError(f"{line}: ranks is {row['ranks']!r}, not a number from 2 on; run ./bench study allreduce again")
    fitted = {name: _read_value(row, name, line) for name in FITTED}
    if min(dataclasses.astuple(fitted["bytes_per_s"])) <= 0:
        raise UserError(f"{line}: bytes_per_s is {row['bytes_per_s']} [{row['bytes_per_s_low']}, ...], but must be "
                        "more than 0; run ./bench study allreduce again")  # fmt: skip
    if fitted["latency_s"].low < 0 or fitted["busy"].low < 0 or fitted["busy"].high > 1:
        raise UserError(f"{line}: latency_s must be 0 or more, and busy from 0 to 1; run ./bench study allreduce again")
    for name, number in fitted.items():
        if not number.low <= number.value <= number.high:
            raise UserError(f"{line}: {name} is {number.value:g}, outside of its interval [{number.low:g}, "
                            f"{number.high:g}]; run ./bench study allreduce again")  # fmt: skip
    return LinkFit(row["path"], int(row["ranks"]), fitted["latency_s"], fitted["bytes_per_s"], fitted["busy"])


def _read_value(row: Mapping[str, str], name: str, line: str) -> UncertainValue:
    try:
        value = UncertainValue(float(row[name]), float(row[f"{name}_low"]), float(row[f"{name}_high"]))
    except (TypeError, ValueError):
        raise UserError(f"{line}: {name} is no number; run ./bench study allreduce again") from None
    if not all(map(math.isfinite, dataclasses.astuple(value))):
        raise UserError(f"{line}: {name} is no number; run ./bench study allreduce again")
    return value
