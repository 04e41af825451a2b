"""The chart of many sets: images/s of each strategy, a column for each set, in the order of their days.

Points of different days are not joined, and nothing is drawn through them: two days are no comparison
(two_days.py). Needs no torch.
"""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from scripts.charts.figures import LINE_COLORS, MARKERS, axis_limits, draw_legend, footnote, legend_shape, make_figure
from scripts.sets.run_group import RunGroup
from scripts.stats.formatting import plural_of_several
from scripts.studies.trend.analysis import DatedSet

MAX_LABELS = 25  # side by side; more would lie on each other
NOTES = (
    "Points: geometric means of a set's runs; bars: 95 % intervals over these runs. They do not cover what a day does. "
    "So no two days are compared here.",
    "A new band is a new day. Dashed: a version is not that of the set before. The axis need not start at zero.",
)


def trend_chart(about: str, pairs: Sequence[tuple[DatedSet, RunGroup]]) -> Figure:
    """Of the groups that ran on the same hardware and images. about: what these are."""
    dated = list(dict.fromkeys(each for each, _ in pairs))
    labels = list(dict.fromkeys(group.label for _, group in pairs))
    num_columns, num_rows = legend_shape(labels)
    figure, (axes,), legend = make_figure(
        "Images/s by day", [each.results for each in dated], [3.0], num_rows, about=about
    )
    styles: dict[str, dict[str, Any]] = {
        label: {"color": LINE_COLORS[number % len(LINE_COLORS)], "marker": MARKERS[number % len(MARKERS)]}
        for number, label in enumerate(labels)
    }
    for each, group in pairs:
        rate = group.timed_throughput
        aside = 0.7 * ((labels.index(group.label) + 0.5) / len(labels) - 0.5)
        ends = None if rate.low is None or rate.high is None else [[rate.value - rate.low], [rate.high - rate.value]]
        axes.errorbar(
            dated.index(each) + aside,
            rate.value,
            yerr=ends,
            linestyle="none",
            linewidth=1.0,
            capsize=2,
            markersize=5,
            markeredgecolor="black",
            markeredgewidth=0.5,
            zorder=3,
            **styles[group.label],
        )
    axes.set_xlim(-0.6, len(dated) - 0.4)
    low, high = axis_limits([group.timed_throughput for _, group in pairs])
    axes.set_ylim(max(0.0, low), high)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.set_ylabel("images/s")
    _mark_days(axes, dated)
    draw_legend(legend, [Line2D([], [], linestyle="none", **style) for style in styles.values()], labels, num_columns)
    runs = plural_of_several([group.timed_throughput.num_runs for _, group in pairs], "run")
    footnote(figure, [*NOTES, f"n = {runs} of each point."])
    return figure


def _mark_days(axes: Axes, dated: Sequence[DatedSet]) -> None:
    """A label for each set, or for some of many; a band for every second day, and a line where a version changes."""
    labelled = range(0, len(dated), -(-len(dated) // MAX_LABELS))
    names = [f"{dated[number].day}\n{dated[number].commit}" for number in labelled]
    axes.set_xticks([*labelled], names, rotation=90 if len(labelled) > 7 else 0, fontsize=6.5)
    days = list(dict.fromkeys(each.day for each in dated))
    for number, each in enumerate(dated):
        if days.index(each.day) % 2:
            axes.axvspan(number - 0.5, number + 0.5, color="0.93", linewidth=0, zorder=0)
        before = dated[number - 1].versions if number else each.versions
        changed = [f"{name} {text}" for name, text in each.versions.items() if text != before[name]]
        if changed:
            axes.axvline(number - 0.5, color="black", linestyle="--", linewidth=0.8, zorder=1)
            axes.annotate(
                ", ".join(changed),
                (number - 0.5, 1),
                xycoords=("data", "axes fraction"),
                xytext=(2, -2),
                textcoords="offset points",
                va="top",
                rotation=90,
                fontsize=6,
            )
