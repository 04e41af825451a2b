"""Horizontal bars with intervals, every run as a point, and the values beside them. Needs no torch."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scripts.charts.figures import COLORS, LINES, RUN_STYLE, draw_legend, make_figure, text_width, wrap
from scripts.results.formatting import format_interval

IDEAL: dict[str, Any] = {"color": "#D55E00", "linewidth": 2.5}
NOT_PARALLEL = "////"
REFERENCE_COLOR, BAND_COLOR = "#C8C8C8", "#F1F1F1"
ROW_HEIGHT = 0.27  # inches
BAND_GAP = 0.6  # rows between the strategies and the references
VALUE_FONT: dict[str, Any] = {"family": "monospace", "size": 6.5}


@dataclasses.dataclass(frozen=True)
class Bar:
    """A value with its interval, that of each run, and where it would end if nothing were lost."""

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
    title: str, about: str, bars: list[Bar], axis_label: str, header: str, lines: Mapping[str, float] | None = None
) -> Figure:
    """Bars from the top down, references in a band of their own below them, and beside each bar its value.

    header: over the values. lines: upright lines over all bars, by what the legend calls them.
    """
    bars, lines = sorted(bars, key=lambda bar: bar.is_reference), lines or {}
    labels = [wrap(bar.label, 30) + ("" if bar.is_parallel else "\n(not parallel)") for bar in bars]
    values = [bar.style.format(bar.value) for bar in bars]
    intervals = [format_interval(bar.low, bar.high, bar.style.format) for bar in bars]
    texts = [f"{value:>{max(map(len, values))}} {interval}" for value, interval in zip(values, intervals, strict=True)]
    places = [number + BAND_GAP * bar.is_reference for number, bar in enumerate(bars)]
    has_ideal, num_rows = any(bar.ideal for bar in bars), max(2, places[-1] + 1)
    legend = [*lines, *["ideal: nothing is lost"] * has_ideal]
    figure, (axes,) = make_figure(
        title,
        about,
        [ROW_HEIGHT * num_rows],
        left=text_width(labels, size=8) + 0.2,
        right=text_width([*texts, header], **VALUE_FONT) + 0.2,
        legend=legend,
    )
    for place, bar, text in zip([-0.9, *places], [None, *bars], [header, *texts], strict=True):
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontproperties=VALUE_FONT)
        if bar:
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
    axes.set_ylim(num_rows - 0.4, -0.6)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(axis_label)
    if bars[-1].is_reference:
        first = sum(not bar.is_reference for bar in bars)
        axes.axhspan(places[first] - 0.6, num_rows, color=BAND_COLOR, zorder=0)
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
