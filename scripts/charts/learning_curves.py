"""The learning curves: losses and top-1 by epoch, and top-1 by seconds.

Strategies that learn the same, to all recorded digits, are one line, which the footnote names. Needs no torch.
"""

import dataclasses
import functools
from typing import Any

import numpy
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from scripts.charts.figures import (
    LINE_COLORS,
    LINES,
    MARKERS,
    draw_legend,
    footnote,
    label_with_set,
    legend_shape,
    make_figure,
)
from scripts.results.accuracy import recorded_seeds, top1_accuracy
from scripts.results.formatting import plural
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup

PANELS = (("train", "loss", "train loss"), ("val", "loss", "val loss"), ("val", "acc1", "val top-1, %"))


@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """Learning curves of one group: a table for each panel, [epoch, run], and the seconds at the end of each epoch."""

    label: str
    group: RunGroup
    tables: dict[str, pandas.DataFrame]
    seconds: pandas.DataFrame

    @functools.cached_property
    def key(self) -> str:
        """Equal for curves that are the same to all recorded digits."""
        means = {title: table.mean(axis=1) for title, table in self.tables.items()}
        return str({title: [(epoch, f"{value:.7g}") for epoch, value in mean.items()] for title, mean in means.items()})

    @functools.cached_property
    def num_runs(self) -> int:
        return max(table.shape[1] for table in self.tables.values())

    @functools.cached_property
    def num_seeds(self) -> int:
        drawn = self.group.ok_runs.run_id.isin(pandas.concat(self.tables.values()).columns)
        return recorded_seeds(self.group)[drawn].nunique(dropna=False)


def learning_chart(sets: list[ResultSet]) -> Figure | None:
    """Train loss, validation loss and top-1 by epoch, and top-1 by the seconds of the passes."""
    curves = [curve for results in sets for group in results.groups if (curve := _curve(group, results, sets))]
    if not curves:
        return None
    num_columns, num_rows = legend_shape([_legend_text(curve) for curve in curves])
    figure, panels, legend = make_figure("Loss and accuracy", sets, [1.9, 1.9], num_rows, num_columns=2)
    families: dict[str, list[Curve]] = {}
    for curve in curves:
        families.setdefault(curve.key, []).append(curve)
    handles = {}
    for number, family in enumerate(families.values()):
        style = {
            "color": LINE_COLORS[number % len(LINE_COLORS)],
            "linestyle": LINES[number % len(LINES)],
            "linewidth": 1.4,
            "markersize": 5,
            "markerfacecolor": "none",
        }
        first = curves.index(family[0])
        for axes, (_, _, title) in zip(panels, PANELS, strict=False):
            _draw(axes, family[0].tables.get(title), style | {"marker": MARKERS[first % len(MARKERS)]})
        _draw_interval(panels[2], family[0], number - (len(families) - 1) / 2, style)
        for curve in family:
            marker = MARKERS[curves.index(curve) % len(MARKERS)]
            handles[curve] = _draw_by_seconds(panels[3], curve, style | {"marker": marker})
    _label_axes(panels)
    draw_legend(legend, [handles[curve] for curve in curves], [_legend_text(curve) for curve in curves], num_columns)
    footnote(figure, [*_same(families), *NOTES])
    return figure


NOTES = (
    "n: seeds; runs of one seed do not tell how far another would be off. Thin: each run, where they differ.",
    "upright line at the last epoch: 95 % interval of top-1, for the validation images, and over seeds where n > 1.",
    "seconds: training and evaluation passes, one after the other, mean over runs; start-up is not in them.",
)


def _same(families: dict[str, list[Curve]]) -> list[str]:
    merged = [" = ".join(curve.label for curve in family) for family in families.values() if len(family) > 1]
    return [f"one line by epoch, since all recorded digits are the same: {'; '.join(merged)}."] if merged else []


def _curve(group: RunGroup, results: ResultSet, sets: list[ResultSet]) -> Curve | None:
    epochs = results.table("epochs")
    rows = epochs[epochs.run_id.isin(group.ok_runs.run_id) & epochs.epoch.notna()]
    tables = {}
    for phase, column, title in PANELS:
        good = rows[(rows.phase == phase) & numpy.isfinite(rows[column])]
        table = good.pivot_table(index="epoch", columns="run_id", values=column, aggfunc="last")
        if not table.empty:
            tables[title] = table
    if not tables:
        return None
    timed = rows[rows.seconds.gt(0) & rows.phase.isin(["train", "val"])]
    seconds = timed.pivot_table(index="epoch", columns="run_id", values="seconds", aggfunc="sum").cumsum()
    if len(seconds) and seconds.index[0] != 0:  # a resumed run does not tell how long it trained before
        seconds = seconds.iloc[:0]
    return Curve(label_with_set(group, results, sets), group, tables, seconds)


def _legend_text(curve: Curve) -> str:
    runs = f", {plural(curve.num_runs, 'run')}" if curve.num_runs > curve.num_seeds else ""
    return f"{curve.label} (n = {plural(curve.num_seeds, 'seed')}{runs})"


def _draw(axes: Axes, table: pandas.DataFrame | None, style: dict) -> None:
    if table is None:
        return
    if len(table.T.drop_duplicates()) > 1:
        axes.plot(table.index + 1, table, color=style["color"], linewidth=0.5, alpha=0.6)
    axes.plot(table.index + 1, table.mean(axis=1), markevery=max(1, len(table) // 8), **style)


def _draw_interval(axes: Axes, curve: Curve, shift: float, style: dict) -> None:
    accuracy, table = top1_accuracy(curve.group), curve.tables.get("val top-1, %")
    if table is None or accuracy is None or accuracy.low is None or accuracy.high is None:
        return
    axes.plot(
        [table.index[-1] + 1 + 0.02 * shift * max(1, len(table) - 1)] * 2,
        [accuracy.low, accuracy.high],
        color=style["color"],
        linewidth=0.9,
        marker="_",
        markersize=4,
    )


def _draw_by_seconds(axes: Axes, curve: Curve, style: dict[str, Any]) -> Line2D:
    table = curve.tables.get("val top-1, %")
    if table is None or curve.seconds.empty:
        return axes.plot([], [], **style)[0]
    seconds, accuracy = curve.seconds.mean(axis=1).align(table.mean(axis=1), join="inner")
    return axes.plot(seconds, accuracy, markevery=max(1, len(seconds) // 8), **style)[0]


def _label_axes(panels: list[Axes]) -> None:
    titles = [*(title for _, _, title in PANELS), "val top-1, % by seconds"]
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(title)
        axes.set_xlabel("epoch")
        axes.margins(x=0.08)
        axes.grid(alpha=0.3)
    for axes in panels[:3]:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    panels[3].set_xlabel("seconds")
    panels[3].set_xlim(left=0)
    panels[3].sharey(panels[2])
