"""The chart of a decision between machines: cost over hours of 90 epochs, a point for each strategy on each machine.

A machine has a line through all costs at its price, a colour and a filling of its markers; a strategy has a marker. So
the chart can be read without colours. Needs no torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from scripts.charts.figures import LINE_COLORS, LINES, MARKERS, draw_legend, footnote, legend_shape, make_figure
from scripts.results.formatting import format_number, plural_of_several, printable
from scripts.results.result_set import ResultSet
from scripts.studies.decide.analysis import pareto_frontier
from scripts.studies.decide.candidates import Candidate, Interval
from scripts.studies.decide.decision_text import NO_EQUAL_SETTINGS
from scripts.studies.decide.training_cost import NUM_EPOCHS

Marker = str | tuple[int, Literal[0, 1, 2], int]
ALL_MARKERS: tuple[Marker, ...] = (*MARKERS, (4, 1, 0), (3, 1, 0), (6, 1, 0), (3, 1, 180), (4, 1, 45), (8, 1, 0))
"""Those of matplotlib that can be filled, and stars: a whole set has 18 labels. Stars cannot be filled by half, so that
from the third machine on they are told apart by colour and line only."""
FILLINGS = ("full", "none", "left", "top", "right", "bottom")
MOST_ON_LINEAR_AXES = 8.0  # the largest over the smallest; beyond, small values lie on top of each other
FRONTIER: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.1}
RING: dict[str, Any] = {
    "marker": "o",
    "markersize": 12,
    "markerfacecolor": "none",
    "markeredgecolor": "black",
    "markeredgewidth": 0.9,
}


def decide_chart(
    sets: list[ResultSet],
    machines: Mapping[str, list[Candidate]],
    shared: Sequence[Sequence[Candidate]],
    prices: Mapping[str, float],
    remarks: Sequence[str],
) -> Figure:
    """A panel with the candidates that have equal settings on all machines, if there are any, and one with all.

    remarks: for below the chart.
    """
    everything = [candidate for candidates in machines.values() for candidate in candidates]
    labels = [*dict.fromkeys(candidate.label for candidate in everything)]
    machine_styles = {name: _machine_style(number) for number, name in enumerate(machines)}
    markers = {label: ALL_MARKERS[number % len(ALL_MARKERS)] for number, label in enumerate(labels)}
    handles = [Line2D([], [], **_with_marker(style)) for style in machine_styles.values()]
    handles += [Line2D([], [], linestyle="none", marker=each, color="dimgray") for each in markers.values()]
    handles.append(Line2D([], [], **FRONTIER, **RING))
    entries = [_machine_entry(name, candidates, prices[name]) for name, candidates in machines.items()]
    entries = [*entries, *map(printable, labels), "ring: Pareto frontier of the means"]
    num_columns, num_rows = legend_shape(entries)
    title = f"{NUM_EPOCHS} ImageNet epochs: cost over time"
    compared = {"each with its machine's own settings": everything}
    if shared:
        compared = {"at equal settings": [candidate for row in shared for candidate in row], **compared}
    figure, panels, legend = make_figure(title, sets, [2.9], num_rows, num_columns=len(compared))
    for axes, (panel_title, candidates) in zip(panels, compared.items(), strict=True):
        axes.set_title(panel_title if shared else f"{panel_title}; {NO_EQUAL_SETTINGS}")
        axes.set_xlabel(f"hours of {NUM_EPOCHS} epochs")
        axes.set_ylabel("cost, in the currency of the prices")
        _draw_candidates(axes, candidates, machine_styles, markers)
    draw_legend(legend, handles, entries, num_columns)
    footnote(figure, [*remarks])
    return figure


def _machine_style(number: int) -> dict[str, Any]:
    return {
        "color": LINE_COLORS[number % len(LINE_COLORS)],
        "linestyle": LINES[number % len(LINES)],
        "fillstyle": FILLINGS[number % len(FILLINGS)],
    }


def _with_marker(style: Mapping[str, Any]) -> dict[str, Any]:
    return {**style, "marker": "o", "markerfacecoloralt": "white", "linewidth": 1.2}


def _machine_entry(name: str, candidates: Sequence[Candidate], price: float) -> str:
    """Its line in the legend: price and number of runs."""
    runs = plural_of_several([candidate.num_runs for candidate in candidates], "run")
    return printable(f"{name}: {format_number(price)} an hour; n = {runs}")


def _draw_candidates(
    axes: Axes, candidates: Sequence[Candidate], styles: Mapping[str, dict[str, Any]], markers: Mapping[str, Marker]
) -> None:
    x_limits, y_limits = (_set_scale(axes, which, candidates) for which in ("x", "y"))
    for machine, money_per_hour in dict.fromkeys((each.machine, each.money_per_hour) for each in candidates):
        style = {name: value for name, value in styles[machine].items() if name != "fillstyle"}
        axes.plot(x_limits, [money_per_hour * x for x in x_limits], linewidth=0.8, alpha=0.7, zorder=1, **style)
    for candidate in candidates:
        style = styles[candidate.machine]
        axes.errorbar(
            candidate.hours.value,
            candidate.money.value,
            xerr=_errors(candidate.hours),
            yerr=_errors(candidate.money),
            color=style["color"],
            ecolor="black",
            linestyle="none",
            linewidth=1.0,
            capsize=2.5,
            marker=markers[candidate.label],
            markersize=5.5,
            fillstyle=style["fillstyle"],
            markerfacecoloralt="white",
            markeredgecolor="black" if style["fillstyle"] != "none" else style["color"],
            markeredgewidth=0.9,
            zorder=3,
        )
    best = pareto_frontier(candidates)
    hours, money = [each.hours.value for each in best], [each.money.value for each in best]
    axes.step(hours, money, where="post", zorder=2, **FRONTIER)
    axes.plot(hours, money, linestyle="none", zorder=4, **RING)
    axes.set_xlim(*x_limits)
    axes.set_ylim(*y_limits)
    axes.grid(alpha=0.3)


def _errors(interval: Interval) -> list[list[float]] | None:
    """How far the interval reaches below and above, as matplotlib takes it."""
    if interval.low is None or interval.high is None:
        return None
    return [[interval.value - interval.low], [interval.high - interval.value]]


def _set_scale(axes: Axes, which: str, candidates: Sequence[Candidate]) -> tuple[float, float]:
    """Logarithmic where values lie far apart, else from zero; returns the limits."""
    intervals = [candidate.hours if which == "x" else candidate.money for candidate in candidates]
    least, most = min(each.value for each in intervals), max(each.value for each in intervals)
    # an interval that is wide for want of runs must not squeeze the points
    top = max([most, *(min(each.high, 1.6 * most) for each in intervals if each.high is not None)])
    axis = axes.xaxis if which == "x" else axes.yaxis
    if most <= MOST_ON_LINEAR_AXES * least:
        axis.set_major_formatter("{x:,.10g}")
        return 0.0, 1.08 * top
    if which == "x":
        axes.set_xscale("log")
    else:
        axes.set_yscale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:,.10g}")
    bottom = min([least, *(max(each.low, least / 1.6) for each in intervals if each.low is not None)])
    return bottom / 1.15, 1.15 * top
