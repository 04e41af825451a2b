"""Analysis of timed all-reduces: bandwidths with intervals, and the ratio to a bare loop.

Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

import numpy
import pandas

from scripts.results.formatting import format_interval, text_table
from scripts.results.intervals import geometric_mean

SMALLEST_BYTES = 2**10
LARGE_BYTES = 2**20  # as much as a gradient bucket holds, or more
HEADER = ("path", "bytes", "n", "time, us", "algbw, GB/s", "busbw, GB/s", "95 %", "bare loop's", "wrong")


@dataclasses.dataclass(frozen=True)
class BandwidthRow:
    """A row of bandwidths.csv: the all-reduces of one path and size. Bandwidths are in bytes/s."""

    path: str
    ranks: int
    bytes: int
    num_rounds: int
    seconds: float
    """Geometric mean over rounds of one all-reduce."""
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    bus_low: float | None
    """95 % interval over rounds; None with one round."""
    bus_high: float | None
    over_bare: float
    """Bus bandwidth over that of the bare loop."""
    wrong: int
    """Values that were not the sum."""


def message_sizes(largest: int) -> list[int]:
    """Bytes of the timed all-reduces: 1 KB, then four times as many each, up to `largest`, which is included."""
    return sorted({min(SMALLEST_BYTES * 4**power, largest) for power in range(16)})


def bandwidths(num_bytes: int, seconds: float, num_ranks: int) -> tuple[float, float]:
    """(algorithm bandwidth, bus bandwidth) of an all-reduce in bytes/s.

    As nccl-tests defines them (doc/PERFORMANCE.md): S / t, and S / t times 2 (n - 1) / n, which is what each link of a
    ring carries.
    """
    algorithm = num_bytes / seconds
    return algorithm, algorithm * 2 * (num_ranks - 1) / num_ranks


def bandwidth_rows(rows: pandas.DataFrame) -> list[BandwidthRow]:
    """One row per path and size.

    rows: of allreduce.csv, with path, ranks, round, bytes, seconds, bare_seconds and wrong; seconds are of one
    all-reduce.
    """
    found = []
    for (path, _), part in rows.groupby(["path", "bytes"], sort=False):
        mean_s, low_s, high_s = geometric_mean(numpy.log(part.seconds.to_numpy(float)))
        num_bytes, ranks = int(part.bytes.iloc[0]), int(part.ranks.iloc[0])
        algorithm, bus = bandwidths(num_bytes, mean_s, ranks)
        found.append(
            BandwidthRow(
                path=str(path),
                ranks=ranks,
                bytes=num_bytes,
                num_rounds=len(part),
                seconds=mean_s,
                algorithm_bytes_per_s=algorithm,
                bus_bytes_per_s=bus,
                bus_low=None if high_s is None else bandwidths(num_bytes, high_s, ranks)[1],
                bus_high=None if low_s is None else bandwidths(num_bytes, low_s, ranks)[1],
                over_bare=geometric_mean(numpy.log((part.bare_seconds / part.seconds).to_numpy(float)))[0],
                wrong=int(part.wrong.sum()),
            )
        )
    return found


def ratio_to_bare_loop(
    rows: pandas.DataFrame, path: str, at_least: int = 0
) -> tuple[float, float | None, float | None]:
    """(ratio, low, high): bus bandwidth of a path over that of the bare loop that was timed interleaved with it.

    The ratio is the geometric mean over sizes; its 95 % interval is over rounds. at_least: bytes of the smallest size
    that counts.
    """
    part = rows[(rows.path == path) & (rows.bytes >= at_least)]
    log_ratios = pandas.Series(numpy.log((part.bare_seconds / part.seconds).to_numpy(float)))
    of_rounds = log_ratios.groupby(part["round"].to_numpy()).mean()
    return geometric_mean(of_rounds.to_numpy(float))


def table(rows: Sequence[BandwidthRow]) -> str:
    """Bandwidth rows as text, with GB of 10^9 bytes."""
    lines = [HEADER]
    for row in rows:
        low, high = (None if end is None else end / 1e9 for end in (row.bus_low, row.bus_high))
        lines.append(
            (
                row.path,
                f"{row.bytes:,}",
                str(row.num_rounds),
                f"{1e6 * row.seconds:,.0f}",
                f"{row.algorithm_bytes_per_s / 1e9:.3f}",
                f"{row.bus_bytes_per_s / 1e9:.3f}",
                format_interval(low, high, "{:.3f}".format),
                f"x {row.over_bare:.3f}",
                str(row.wrong),
            )
        )
    return text_table(lines, left_aligned=(0,))
