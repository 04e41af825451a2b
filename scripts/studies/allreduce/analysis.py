"""Bandwidths of all-reduces, as a table and a chart. Needs no torch."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy
import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import LINE_COLORS, LINES, MARKERS, add_note, make_figure
from scripts.results.formatting import format_with_interval, text_table
from scripts.results.intervals import geometric_mean

ROW = "row:"
"""How a rank's line with a row begins."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
SMALLEST_BYTES = 2**10
SIZE_LABELS = {2**10: "1 KB", 2**14: "16 KB", 2**18: "256 KB", 2**20: "1 MB", 2**24: "16 MB", 2**28: "256 MB"}


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
        mean_s, low_s, high_s = geometric_mean(numpy.log(part.seconds.to_numpy(float)))
        num_bytes, ranks = int(part.bytes.iloc[0]), int(part.ranks.iloc[0])
        algorithm, bus = bandwidths(num_bytes, mean_s, ranks)
        low, high = (None if end is None else bandwidths(num_bytes, end, ranks)[1] for end in (high_s, low_s))
        wrong = int(part.wrong.sum())
        found.append(BandwidthRow(str(path), ranks, num_bytes, len(part), mean_s, algorithm, bus, low, high, wrong))
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


def allreduce_chart(rows: Sequence[BandwidthRow], about: str) -> Figure:
    """Bus bandwidth of every path over the bytes of an all-reduce."""
    figure, (axes,) = make_figure("All-reduce, as DDP sends gradients", about, [2.4])
    for number, path in enumerate(dict.fromkeys(row.path for row in rows)):
        of_path = [row for row in rows if row.path == path]
        sizes, values = [row.bytes for row in of_path], [row.bus_bytes_per_s / 1e9 for row in of_path]
        below = [(row.bus_bytes_per_s - (row.bus_low or row.bus_bytes_per_s)) / 1e9 for row in of_path]
        above = [((row.bus_high or row.bus_bytes_per_s) - row.bus_bytes_per_s) / 1e9 for row in of_path]
        color, line = LINE_COLORS[number], LINES[number]
        style: dict[str, Any] = {"color": color, "linestyle": line, "marker": MARKERS[number], "markersize": 4.5}
        axes.errorbar(sizes, values, yerr=[below, above], label=path, capsize=2, **style)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("bus bandwidth, GB/s")
    axes.legend(frameon=False, fontsize=7)
    labels = {size: label for size, label in SIZE_LABELS.items() if size <= max(row.bytes for row in rows)}
    axes.set_xscale("log", base=2)
    axes.set_xticks([*labels], [*labels.values()])
    axes.minorticks_off()
    axes.set_xlabel("bytes of an all-reduce")
    axes.grid(alpha=0.3)
    add_note(figure, f"means of {rows[0].num_rounds} rounds, with 95 % intervals; GB: 10^9 bytes.")
    return figure
