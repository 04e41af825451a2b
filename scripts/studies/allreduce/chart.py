"""The chart of `./bench study allreduce`: bandwidth and time over message size."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.charts.figures import LINE_COLORS, LINES, MARKERS, footnote, make_figure
from scripts.studies.allreduce.analysis import BandwidthRow

SIZE_LABELS = {2**10: "1 KB", 2**12: "4 KB", 2**14: "16 KB", 2**18: "256 KB", 2**20: "1 MB", 2**24: "16 MB"}
SIZE_LABELS |= {2**28: "256 MB"}


def allreduce_chart(rows: Sequence[BandwidthRow], about: str) -> Figure:
    """Bus bandwidth and time of every path over the bytes of an all-reduce."""
    title = "All-reduce, by the path that each strategy sends gradients through"
    figure, (bandwidth, time), _ = make_figure(title, [], [2.4, 2.1], 0, about=about)
    paths = [*dict.fromkeys(row.path for row in rows)]
    for number, path in enumerate(paths):
        offset = 1.12 ** (number - (len(paths) - 1) / 2)  # so that no interval hides another
        _draw_path(bandwidth, time, number, [row for row in rows if row.path == path], offset)
    bandwidth.set_ylim(bottom=0)
    bandwidth.set_ylabel("bus bandwidth, GB/s")
    bandwidth.legend(frameon=False, fontsize=7)
    time.set_yscale("log")
    time.yaxis.set_major_formatter("{x:,.10g}")
    time.set_ylabel("time, microseconds")
    for axes in (bandwidth, time):
        _set_size_axis(axes, max(row.bytes for row in rows))
    n = "/".join(map(str, sorted({row.num_rounds for row in rows})))
    points = f"points: means of {n} rounds, with 95 % intervals over rounds; those of one size stand side by side."
    footnote(figure, [f"{points} GB: 10^9 bytes."])
    return figure


def _draw_path(bandwidth: Axes, time: Axes, number: int, rows: Sequence[BandwidthRow], offset: float) -> None:
    color = LINE_COLORS[number % len(LINE_COLORS)]
    style: dict[str, Any] = {"color": color, "marker": MARKERS[number], "markersize": 4.5, "linewidth": 1}
    style["linestyle"] = LINES[number % len(LINES)]
    sizes = [offset * row.bytes for row in rows]
    for row in rows:
        if row.bus_low is not None and row.bus_high is not None:
            ends = [row.bus_low / 1e9, row.bus_high / 1e9]
            bandwidth.plot([offset * row.bytes] * 2, ends, color=color, linewidth=1, marker="_", markersize=5)
    bandwidth.plot(sizes, [row.bus_bytes_per_s / 1e9 for row in rows], label=rows[0].path, **style)
    time.plot(sizes, [1e6 * row.seconds for row in rows], **style)


def _set_size_axis(axes: Axes, largest: int) -> None:
    """largest: bytes of the largest measured all-reduce."""
    axes.set_xscale("log", base=2)
    labels = {size: label for size, label in SIZE_LABELS.items() if size <= largest}
    axes.set_xticks([*labels], [*labels.values()])
    axes.minorticks_off()
    axes.set_xlabel("bytes of an all-reduce")
    axes.grid(alpha=0.3)
