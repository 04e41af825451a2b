"""The chart of `./bench study allreduce`: bandwidth and time over message size, with the fitted link."""

from collections.abc import Sequence
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.charts.figures import LINE_COLORS, LINES, MARKERS, footnote, make_figure
from scripts.studies.allreduce.analysis import BandwidthRow
from scripts.studies.allreduce.links import Link, LinkFit, bandwidths, ring

SIZE_LABELS = {2**10: "1 KB", 2**12: "4 KB", 2**14: "16 KB", 2**18: "256 KB", 2**20: "1 MB", 2**24: "16 MB"}
SIZE_LABELS |= {2**28: "256 MB"}


def allreduce_chart(rows: Sequence[BandwidthRow], fits: Sequence[LinkFit], about: str) -> Figure:
    """Bus bandwidth and time of every path over the bytes of an all-reduce. Points are measured, lines are fitted."""
    title = "All-reduce, by the path that each strategy sends gradients through"
    figure, (bandwidth, time), _ = make_figure(title, [], [2.4, 2.1], 0, about=about)
    for number, fit in enumerate(fits):
        offset = 1.12 ** (number - (len(fits) - 1) / 2)  # so that no interval hides another
        _draw_path(bandwidth, time, number, fit, [row for row in rows if row.path == fit.path], offset)
    bandwidth.set_ylim(bottom=0)
    bandwidth.set_ylabel("bus bandwidth, GB/s")
    bandwidth.legend(frameon=False, fontsize=7)
    time.set_yscale("log")
    time.yaxis.set_major_formatter("{x:,.10g}")
    time.set_ylabel("time, microseconds")
    for axes in (bandwidth, time):
        _set_size_axis(axes, max(row.bytes for row in rows))
    n = "/".join(map(str, sorted({row.num_rounds for row in rows})))
    lines = "lines: latency + bytes / bandwidth, fitted to relative errors; GB: 10^9 bytes."
    points = f"points: means of {n} rounds, with 95 % intervals over rounds; those of one size stand side by side;"
    footnote(figure, [f"{points} {lines}"])
    return figure


def _draw_path(
    bandwidth: Axes, time: Axes, number: int, fit: LinkFit, rows: Sequence[BandwidthRow], offset: float
) -> None:
    color = LINE_COLORS[number % len(LINE_COLORS)]
    points: dict[str, Any] = {"color": color, "marker": MARKERS[number], "markersize": 4.5, "linestyle": "none"}
    line: dict[str, Any] = {"color": color, "linewidth": 1, "linestyle": LINES[number % len(LINES)]}
    sizes = numpy.array([row.bytes for row in rows])
    fitted_s = ring(sizes, fit.ranks, Link(fit.latency_s.value, fit.bytes_per_s.value))
    bandwidth.plot(sizes, bandwidths(sizes, fitted_s, fit.ranks)[1] / 1e9, **line)
    time.plot(sizes, 1e6 * fitted_s, **line)
    for row in rows:
        if row.bus_low is not None and row.bus_high is not None:
            ends = [row.bus_low / 1e9, row.bus_high / 1e9]
            bandwidth.plot([offset * row.bytes] * 2, ends, color=color, linewidth=1, marker="_", markersize=5)
    bandwidth.plot(offset * sizes, [row.bus_bytes_per_s / 1e9 for row in rows], label=fit.path, **points)
    time.plot(offset * sizes, [1e6 * row.seconds for row in rows], **points)


def _set_size_axis(axes: Axes, largest: int) -> None:
    """largest: bytes of the largest measured all-reduce."""
    axes.set_xscale("log", base=2)
    labels = {size: label for size, label in SIZE_LABELS.items() if size <= largest}
    axes.set_xticks([*labels], [*labels.values()])
    axes.minorticks_off()
    axes.set_xlabel("bytes of an all-reduce")
    axes.grid(alpha=0.3)
