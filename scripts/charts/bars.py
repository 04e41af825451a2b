"""Horizontal bars with intervals, every run as a point, and a table beside them. Needs no torch."""

import dataclasses
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from scripts.charts.figures import COLORS, RUN_STYLE, SET_HATCHES, footnote, make_figure, wrap
from scripts.results.formatting import printable
from scripts.results.intervals import NO_REPEAT
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_failures

NOT_PARALLEL = "////"
IDEAL = "#D55E00"
LETTER_WIDTH = 4.4  # points, of a digit at size 7
# the ends of an interval, above the points, with a white rim: among many points they could not be seen
INTERVAL_ENDS: dict[str, Any] = {
    "linestyle": "none",
    "color": "black",
    "marker": "|",
    "markersize": 10,
    "markeredgewidth": 1.4,
    "path_effects": [withStroke(linewidth=3, foreground="white")],
    "zorder": RUN_STYLE["zorder"] + 1,
}


@dataclasses.dataclass(frozen=True)
class Bar:
    """One bar: its length, interval, the value of each run, and its cells in the table beside the chart."""

    label: str
    value: float
    low: float | None
    high: float | None
    points: list[float]
    cells: tuple[str, str, str]
    """n, the value, and its interval, as text."""
    parallel: bool
    set_number: int
    ideal: float | None = None
    """Where it would end if nothing were lost."""


def make_bar_figure(
    title: str, sets: list[ResultSet], *num_bars: int, about: str = ""
) -> tuple[Figure, list[Axes], Axes]:
    """A figure with one panel for each number of bars, the panels, and the place of the legend."""
    heights = [(0.15 if len(num_bars) == 1 else 0.5) + 0.28 * max(number, 2) for number in num_bars]
    return make_figure(title, sets, heights, (len(sets) + 1) // 2 if len(sets) > 1 else 0, about=about)


def draw_bars(axes: Axes, bars: list[Bar], num_sets: int, header: str) -> None:
    """Horizontal bars from the top down, and beside them a table: n, the value under `header`, its interval."""
    for place, bar in enumerate(bars):
        set_color = COLORS[bar.set_number % len(COLORS)]
        set_hatch = SET_HATCHES[bar.set_number % len(SET_HATCHES)] if num_sets > 1 else ""
        axes.barh(
            place,
            bar.value,
            height=0.72,
            color=set_color if bar.parallel else "white",
            hatch=set_hatch if bar.parallel else NOT_PARALLEL + set_hatch,
            edgecolor="black" if bar.parallel else set_color,
            linewidth=0.8,
        )
        if bar.ideal is not None:
            axes.plot([bar.ideal] * 2, [place - 0.4, place + 0.4], color=IDEAL, linewidth=2.5, solid_capstyle="butt")
        if bar.low is not None and bar.high is not None:
            axes.plot([bar.low, bar.high], [place, place], color="black", linewidth=1.2)
            axes.plot([bar.low, bar.high], [place, place], **INTERVAL_ENDS)
        heights = place + numpy.linspace(-0.2, 0.2, len(bar.points) + 2)[1:-1]
        axes.plot(bar.points, heights, **RUN_STYLE)
    # an interval that is wide for want of rounds must not squeeze the bars
    longest = max(max([bar.value, *bar.points]) for bar in bars)
    ends = [max([bar.value, *bar.points, bar.ideal or 0, min(bar.high or 0, 1.6 * longest)]) for bar in bars]
    axes.set_xlim(0, 1.03 * max(ends))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    longest_label = max(len(bar.label) for bar in bars)
    labels = [wrap(bar.label, 28 if longest_label <= 56 else 46) for bar in bars]
    labels = [text + ("" if bar.parallel else "\n(not parallel)") for text, bar in zip(labels, bars, strict=True)]
    axes.set_yticks(range(len(bars)), labels)
    most_lines = max(text.count("\n") + 1 for text in labels)
    axes.tick_params(axis="y", labelsize=min(8.0, 16 / most_lines))  # a bar has room for two lines of the common size
    axes.tick_params(axis="y", length=0)
    _cells(axes, bars, header)


def _cells(axes: Axes, bars: list[Bar], header: str) -> None:
    rows = [("n", header, ""), *(bar.cells for bar in bars)]
    n_width, value_width = (max(len(row[column]) for row in rows[1:]) * LETTER_WIDTH for column in (0, 1))
    n_width = max(n_width, 2 * LETTER_WIDTH)
    places = (8, 8 + n_width + 10 + value_width, 8 + n_width + 10 + value_width + 4)
    for place, row in enumerate(rows, start=-1):
        for column, (text, x) in enumerate(zip(row, places, strict=True)):
            y = place if place >= 0 else -0.62
            if place < 0 and column == 1:  # over the value and its interval
                x = 8 + n_width + 10
            axes.annotate(
                printable(text),
                (1, y),
                xycoords=("axes fraction", "data"),
                xytext=(x, 0),
                textcoords="offset points",
                ha="right" if column == 1 and place >= 0 else "left",
                va="center" if place >= 0 else "bottom",
                fontsize=7,
                annotation_clip=False,
            )


def finish(
    figure: Figure,
    legend: Axes,
    sets: list[ResultSet],
    bars: list[Bar],
    notes: list[str] | None = None,
    no_interval: str = NO_REPEAT,
) -> None:
    """Legend of the sets, and footnotes: what hatching means, what is missing and why.

    no_interval: why a bar without an interval has none.
    """
    if len(sets) > 1:
        handles = [
            Patch(
                facecolor=COLORS[n % len(COLORS)],
                hatch=SET_HATCHES[n % len(SET_HATCHES)],
                edgecolor="black",
                label=printable(results.name),
            )
            for n, results in enumerate(sets)
        ]
        legend.legend(handles=handles, loc="center", ncols=2, frameon=False, fontsize=7)
    lines = list(notes or [])
    if not all(bar.parallel for bar in bars):
        lines.append("not parallel (white, hatched): it ran, but had nothing to divide the work over.")
    if any(bar.low is None for bar in bars):
        lines.append(f"no interval: {no_interval}.")
    where: dict[str, list[str]] = {}
    for results in sets:
        for text in describe_failures(results):
            where.setdefault(text, []).append(results.name)
    lines += [f"{', '.join(names)}: {text}" if len(sets) > 1 else text for text, names in where.items()]
    footnote(figure, lines)
