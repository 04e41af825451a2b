"""Draw what make bench-allreduce measured: bandwidth and time over size, with the fitted link. Needs no torch.

from scripts.studies.allreduce.chart import allreduce_chart
"""

from collections.abc import Mapping, Sequence

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.charts.figures import LINE_COLORS, LINES, MARKERS, footnote, make_figure
from scripts.studies.allreduce.links import Fit, Link, bandwidths, ring

SHOWN = {2**10: "1 KB", 2**14: "16 KB", 2**18: "256 KB", 2**20: "1 MB", 2**24: "16 MB", 2**28: "256 MB"}


def allreduce_chart(rows: Sequence[Mapping], fits: Sequence[Fit], about: str) -> Figure:
    """Bus bandwidth, and time, of every path over the bytes of an all-reduce; points are measured, lines the fits."""
    title = "All-reduce, by the path that each strategy sends gradients through"
    figure, (speed, time), _ = make_figure(title, [], [2.4, 2.1], 0, about=about)
    for number, fit in enumerate(fits):
        mine = [row for row in rows if row["path"] == fit.path]
        color, marker = LINE_COLORS[number % len(LINE_COLORS)], MARKERS[number]
        sizes = numpy.array([row["bytes"] for row in mine])
        aside = 1.12 ** (number - (len(fits) - 1) / 2)  # so that no interval hides another
        fitted_s = ring(sizes, fit.ranks, Link(fit.latency_s.value, fit.bytes_per_s.value))
        bus = numpy.array([row["bus_bytes_per_s"] for row in mine]) / 1e9
        style = {"color": color, "marker": marker, "markersize": 4.5, "linestyle": "none"}
        line = {"color": color, "linewidth": 1, "linestyle": LINES[number % len(LINES)]}
        speed.plot(sizes, bandwidths(sizes, fitted_s, fit.ranks)[1] / 1e9, **line)
        time.plot(sizes, 1e6 * fitted_s, **line)
        for row in mine:
            if row["bus_low"] is not None:
                ends = [row["bus_low"] / 1e9, row["bus_high"] / 1e9]
                speed.plot([aside * row["bytes"]] * 2, ends, color=color, linewidth=1, marker="_", markersize=5)
        speed.plot(aside * sizes, bus, label=fit.path, **style)
        time.plot(aside * sizes, [1e6 * row["seconds"] for row in mine], **style)
    speed.set_ylim(bottom=0)
    speed.set_ylabel("bus bandwidth, GB/s")
    speed.legend(frameon=False, fontsize=7)
    time.set_yscale("log")
    time.yaxis.set_major_formatter("{x:,.10g}")
    time.set_ylabel("time, microseconds")
    for axes in (speed, time):
        _sizes(axes)
    n = "/".join(map(str, sorted({row["num_rounds"] for row in rows})))
    lines = "lines: latency + bytes / bandwidth, fitted to relative errors; GB: 10^9 bytes."
    points = f"points: means of {n} rounds, with 95 % intervals over rounds; those of one size stand side by side;"
    footnote(figure, [f"{points} {lines}"])
    return figure


def _sizes(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks([*SHOWN], [*SHOWN.values()])
    axes.minorticks_off()
    axes.set_xlabel("bytes of an all-reduce")
    axes.grid(alpha=0.3)
