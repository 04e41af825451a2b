"""The learning curves: losses and top-1 by epoch, and top-1 by seconds, also of trainings that still run.

Strategies that learn the same, to all recorded digits, are one line.
"""

import textwrap

import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from benchmarks.common.rows import read_table
from scripts.charts.figures import draw_legend, line_style, make_figure
from scripts.results.accuracy import top1_accuracy
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_rows

TOP1 = ("acc1", "val")
PANELS = {"train loss": ("loss", "train"), "val loss": ("loss", "val"), "val top-1, %": TOP1}
LEGEND_LETTERS = 60
Curves = dict[str, pandas.DataFrame]
"""By label: a row an epoch, counted from 1, with the means over runs of PANELS, and `seconds` since the first epoch."""


def learning_chart(results: ResultSet) -> Figure | None:
    curves, lines = learning_curves(results), dict[str, list[str]]()
    for label, curve in curves.items():
        lines.setdefault(curve.drop(columns="seconds", level=0).to_csv(float_format="%.7g"), []).append(label)
    if all(len(curve) < 2 for curve in curves.values()):  # one epoch is no curve
        return None
    legend = [textwrap.shorten(" = ".join(labels), LEGEND_LETTERS, placeholder=" ...") for labels in lines.values()]
    note = "means over runs; upright: 95 % interval of top-1; seconds: of all passes; a = b: equal in all digits"
    about = f"{describe_rows(results.ok_runs)}\n{note}"
    figure, panels = make_figure(_title(curves), about, [1.7, 1.7], 2, legend=legend)
    intervals = {group.label: top1_accuracy(group) for group in results.groups}
    handles = []
    for number, labels in enumerate(lines.values()):
        style, curve = line_style(number), curves[labels[0]]
        style["markevery"] = max(1, len(curve) // 8)
        for axes, column in zip(panels, PANELS.values(), strict=False):
            handles += axes.plot(curve.index, curve[column], **style)
        if accuracy := intervals.get(labels[0]):
            place = curve.index[-1] + 0.02 * len(curve) * (number - (len(lines) - 1) / 2)
            panels[2].plot([place] * 2, [accuracy.low, accuracy.high], color=style["color"], marker="_")
        for label in labels:
            panels[3].plot(curves[label]["seconds"], curves[label][TOP1], **style)
    for axes, title in zip(panels, [*PANELS, "val top-1, % by seconds"], strict=True):
        axes.set_title(title)
        axes.set_xlabel("seconds" if "seconds" in title else "epoch")
        axes.margins(x=0.08)
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    panels[3].set_xlim(left=0)
    draw_legend(figure, handles[:: len(PANELS)], legend)
    return figure


def learning_curves(results: ResultSet) -> Curves:
    """Of each strategy's ok runs, and of the newest run where it has no row yet."""
    epochs = results.table("epochs")
    if epochs.empty:
        return {}
    label_of = {run_id: group.label for group in results.groups for run_id in group.ok_runs.run_id}
    newest = epochs.run_id.iloc[-1]
    if newest not in {*read_table(results.path, "runs").run_id}:
        label_of[newest] = f"{newest}, so far"
    labels, numbered = epochs.run_id.map(label_of), epochs.assign(epoch=epochs.epoch + 1)
    found: Curves = {}
    for label in dict.fromkeys(label_of.values()):
        rows = numbered[labels == label].groupby(["epoch", "phase"])[["loss", "acc1", "seconds"]]
        if len(rows):
            means = pandas.DataFrame(rows.mean().unstack("phase"))
            curve = means.reindex(columns=[*PANELS.values()])
            seconds = pandas.DataFrame(means["seconds"]).sum(axis=1, min_count=1)
            # a resumed run does not tell how long it trained before
            curve["seconds", ""] = seconds.cumsum() if curve.index[0] == 1 else float("nan")
            found[label] = curve
    return found


def _title(curves: Curves) -> str:
    last = {label: known.iloc[-1] for label, curve in curves.items() if len(known := curve[TOP1].dropna())}
    if not last:
        return "Loss by epoch"
    low, high = min(last, key=lambda label: last[label]), max(last, key=lambda label: last[label])
    span = f"{last[low]:.1f} % ({low})" + (f" to {last[high]:.1f} % ({high})" if last[high] > last[low] else "")
    return f"Top-1 after {max(map(len, curves.values()))} epochs: {span}"
