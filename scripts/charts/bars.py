"""Horizontal bars with intervals, every run as a point, and the values beside them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scripts.charts.figures import COLORS, LINES, RUN_STYLE, draw_legend, make_rows
from scripts.results.formatting import format_interval

IDEAL: dict[str, Any] = {"color": "#D55E00", "linewidth": 2.5}
NOT_PARALLEL = "////"
REFERENCE_COLOR = "#C8C8C8"


@dataclasses.dataclass(frozen=True)
class Bar:
    """points: of each run. ideal: where it would end if nothing were lost."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    points: list[float] = dataclasses.field(default_factory=list)
    style: str = "{:.2f}"
    is_parallel: bool = True
    is_reference: bool = False
    ideal: float | None = None


def bar_chart(
    title: str,
    about: str,
    bars: list[Bar],
    axis_label: str,
    header: str,
    lines: Mapping[str, float] | None = None,
) -> Figure:
    """Bars from the top down, references last, and beside each bar its value.

    header: over the values. lines: upright lines over all bars, by what the legend calls them.
    """
    bars, lines = sorted(bars, key=lambda bar: bar.is_reference), lines or {}
    labels = [bar.label + " (on one device)" * (not bar.is_parallel) for bar in bars]
    values = [bar.style.format(bar.value) for bar in bars]
    intervals = [format_interval(bar.low, bar.high, bar.style.format) for bar in bars]
    texts = [f"{value:>{max(map(len, values))}} {interval}" for value, interval in zip(values, intervals, strict=True)]
    has_ideal = any(bar.ideal for bar in bars)
    legend = [*lines, *["ideal: nothing is lost"] * has_ideal]
    figure, axes = make_rows(title, about, labels, [header, *texts], axis_label, legend)
    for place, bar in enumerate(bars):
        _draw_bar(axes, place, bar)
    handles = [
        axes.axvline(x, color="black", linewidth=1.1, linestyle=LINES[1 + number], zorder=2.5)
        for number, x in enumerate(lines.values())
    ]
    if legend:
        draw_legend(figure, [*handles, *[Line2D([], [], **IDEAL)] * has_ideal], legend)
    # an interval that is wide for want of rounds must not squeeze the bars
    longest = max(max([bar.value, *bar.points]) for bar in bars)
    ends = [min(bar.high or 0, 1.6 * longest) for bar in bars] + [bar.ideal or 0 for bar in bars]
    axes.set_xlim(0, 1.03 * max(longest, *ends, *lines.values()))
    axes.xaxis.set_major_formatter("{x:,.10g}")
    return figure


def _draw_bar(axes: Axes, place: float, bar: Bar) -> None:
    color = REFERENCE_COLOR if bar.is_reference else COLORS[0]
    face, hatch, edge = (color, "", "black") if bar.is_parallel else ("white", NOT_PARALLEL, color)
    axes.barh(place, bar.value, height=0.72, color=face, hatch=hatch, edgecolor=edge, linewidth=0.8)
    if bar.ideal is not None:
        axes.plot([bar.ideal] * 2, [place - 0.4, place + 0.4], solid_capstyle="butt", **IDEAL)
    axes.plot(bar.points, place + numpy.linspace(-0.2, 0.2, len(bar.points) + 2)[1:-1], **RUN_STYLE)
    if bar.low is not None and bar.high is not None:
        reach = [[bar.value - bar.low], [bar.high - bar.value]]
        axes.errorbar(bar.value, place, xerr=reach, color="black", capsize=4, linewidth=1.2, zorder=4)
