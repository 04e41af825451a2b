"""Bandwidths of all-reduces. Needs no torch."""

import dataclasses
from collections.abc import Sequence

import numpy
import pandas

from scripts.results.formatting import format_with_interval, text_table
from scripts.results.intervals import geometric_mean

ROW = "row:"
"""How a rank's line with a row begins."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
SMALLEST_BYTES = 2**10


@dataclasses.dataclass(frozen=True)
class BandwidthRow:
    """A row of bandwidths.csv, of one path and size. seconds: of one call. wrong: values that were not the sum."""

    path: str
    ranks: int
    bytes: int
    num_rounds: int
    seconds: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    bus_low: float | None
    bus_high: float | None
    wrong: int


def message_sizes(largest: int) -> list[int]:
    """In bytes: 1 KB, then four times as many each, up to `largest`, which is included."""
    return sorted({min(SMALLEST_BYTES * 4**power, largest) for power in range(16)})


def bandwidths(num_bytes: int, seconds: float, num_ranks: int) -> tuple[float, float]:
    """(algorithm, bus) in bytes/s, as nccl-tests defines them (doc/PERFORMANCE.md): S / t, and S / t times
    2 (n - 1) / n, which is what each link of a ring carries."""
    algorithm = num_bytes / seconds
    return algorithm, algorithm * 2 * (num_ranks - 1) / num_ranks


def bandwidth_rows(rows: pandas.DataFrame) -> list[BandwidthRow]:
    """rows: path, ranks, round, bytes, seconds, wrong."""
    found = []
    for (path, _), part in rows.groupby(["path", "bytes"], sort=False):
        mean = geometric_mean(numpy.log(part.seconds.to_numpy(float)))
        num_bytes, ranks = int(part.bytes.iloc[0]), int(part.ranks.iloc[0])
        algorithm, bus = bandwidths(num_bytes, mean.value, ranks)
        low, high = (None if end is None else bandwidths(num_bytes, end, ranks)[1] for end in (mean.high, mean.low))
        wrong = int(part.wrong.sum())
        found.append(BandwidthRow(str(path), ranks, num_bytes, len(part), mean.value, algorithm, bus, low, high, wrong))
    return found


def table(rows: Sequence[BandwidthRow]) -> str:
    """With GB of 10^9 bytes."""
    lines = [("path", "bytes", "n", "time, us", "algbw, GB/s", "busbw, GB/s [95 %]", "wrong")]
    for row in rows:
        low, high = (None if end is None else end / 1e9 for end in (row.bus_low, row.bus_high))
        bus = format_with_interval(row.bus_bytes_per_s / 1e9, low, high, "{:.3f}".format)
        algorithm = f"{row.algorithm_bytes_per_s / 1e9:.3f}"
        time_us = f"{1e6 * row.seconds:,.0f}"
        lines.append((row.path, f"{row.bytes:,}", str(row.num_rounds), time_us, algorithm, bus, str(row.wrong)))
    return text_table(lines, left_aligned=(0, 5))
