"""The chart of what a strategy's speed costs in memory. Needs no torch."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scripts.charts.figures import (
    LINE_COLORS,
    MARKERS,
    axis_limits,
    draw_legend,
    footnote,
    label_with_set,
    legend_shape,
    make_figure,
)
from scripts.charts.throughput import groups_by_model
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.stats.formatting import plural


def memory_chart(sets: list[ResultSet]) -> Figure | None:
    """Images/s over the peak memory of the device that used most; a panel for each model and size of image."""
    works = {
        work: [pair for pair in found if pair[1].ok_runs.peak_memory_mb.gt(0).any()]
        for work, found in groups_by_model(sets).items()
    }
    works = {work: found for work, found in works.items() if found}
    if not works:
        return None
    every = [pair for found in works.values() for pair in found]
    labels = [
        f"{label_with_set(group, sets[number], sets)} (n = {plural(len(group.windows_of_runs), 'run')})"
        for number, group in every
    ]
    num_columns, num_rows = legend_shape(labels)
    figure, panels, legend = make_figure("Throughput and memory", sets, [2.6] * len(works), num_rows)
    styles = [
        {"color": LINE_COLORS[n % len(LINE_COLORS)], "marker": MARKERS[n % len(MARKERS)]} for n in range(len(every))
    ]
    handles: list[Line2D] = []
    for axes, (work, found) in zip(panels, works.items(), strict=True):
        handles += [_draw_memory(axes, group, **styles[len(handles) + n]) for n, (_, group) in enumerate(found)]
        axes.margins(x=0.08)
        axes.set_ylim(axis_limits([group.timed_throughput for _, group in found]))
        axes.grid(alpha=0.3)
        axes.set_title(work if len(works) > 1 else "")
        axes.set_ylabel("images/s")
        axes.yaxis.set_major_formatter("{x:,.10g}")
    kind = "allocated by torch" if any(group.ok_runs.device.eq("cuda").any() for _, group in every) else "resident"
    panels[-1].set_xlabel(f"peak memory of the device that used most, GB   ({kind})")
    draw_legend(legend, handles, labels, num_columns)
    notes = [
        "upright line: 95 % interval of images/s over runs; level line: from the least memory of a run to the most. "
        "Neither axis starts at zero."
    ]
    if not all(group.is_parallel for _, group in every):
        notes.append("white: not parallel, it had nothing to divide the work over.")
    footnote(figure, notes)
    return figure


def _draw_memory(axes: Axes, group: RunGroup, color: str, marker: str) -> Line2D:
    """One group as a point with its lines; returns the point, for the legend."""
    estimate, memory = group.timed_throughput, group.ok_runs.peak_memory_mb.dropna() / 1000
    where: dict[str, Any] = {"color": color, "linewidth": 1.0, "zorder": 2, "markersize": 4}
    if estimate.low is not None and estimate.high is not None:
        axes.plot([memory.mean()] * 2, [estimate.low, estimate.high], marker="_", **where)
    axes.plot([memory.min(), memory.max()], [estimate.value] * 2, marker="|", **where)
    (point,) = axes.plot(
        memory.mean(),
        estimate.value,
        linestyle="none",
        marker=marker,
        markersize=7,
        markerfacecolor=color if group.is_parallel else "white",
        markeredgecolor="black" if group.is_parallel else color,
        markeredgewidth=0.7 if group.is_parallel else 1.2,
        zorder=4,
    )
    return point
