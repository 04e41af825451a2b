"""The chart of where the time of a step goes, by the step breakdown of each strategy."""

from collections.abc import Iterator

import numpy
import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import draw_legend, make_rows
from scripts.results.answer import find_answer, table_groups
from scripts.results.formatting import format_number, plural_of_several
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_rows
from scripts.results.step_breakdown import mean_over_runs, pipeline_bubbles, step_parts

# phase: what the legend calls it, colour, hatch; dots and circles are large in SVG
STYLES = {
    "data": ("waiting for data", "#E69F00", ".."),
    "copy": ("copy to device", "#F0E442", "----"),
    "forward": ("forward", "#0072B2", ""),
    "backward": ("backward", "#56B4E9", "////"),
    "exposed_comm": ("exposed communication", "#D55E00", "xxxx"),
    "wait": ("waiting for other ranks", "#CC79A7", "++"),
    "optimizer": ("optimizer", "#009E73", "\\\\\\\\"),
    "other": ("other", "#BBBBBB", ""),
}
COLUMNS = [f"{phase}_ms" for phase in STYLES]
LEAST_SEEN = 0.003  # of the longest bar


def step_bars(results: ResultSet) -> Iterator[tuple[str, pandas.DataFrame, str]]:
    """A bar a strategy; of a pipeline, a bar a stage: label, accounted steps, and what stands beside it."""
    steps = results.table("steps")
    for group in table_groups(results):
        stages = pipeline_bubbles(group, steps)
        for stage in stages:
            bubble = f"; waits {100 * stage.waited.value:.0f} %, ideal {100 * stage.ideal:.0f} %"
            parts = step_parts(group, steps, stage.rank)
            yield f"{group.label}, rank {stage.rank}", parts, _length(parts) + bubble
        if not stages and len(parts := step_parts(group, steps)):
            yield group.label + " (on one device)" * (not group.is_parallel), parts, _length(parts)


def _length(parts: pandas.DataFrame) -> str:
    mean = mean_over_runs(parts[COLUMNS].sum(axis=1), parts.run_id)
    return mean.text("{:.0f}".format) if mean else ""


def step_chart(results: ResultSet) -> Figure | None:
    """Mean milliseconds of each part, stacked."""
    bars = [*step_bars(results)]
    if not bars:
        return None
    labels, all_parts, texts = zip(*bars, strict=True)
    # unknown, or below zero by noise: not drawn
    means = pandas.DataFrame([parts[COLUMNS].mean().clip(lower=0.0) for parts in all_parts]).fillna(0.0)
    longest, ends = means.sum(axis=1).max(), numpy.zeros(len(bars))
    by_phase = {phase: means[f"{phase}_ms"].to_numpy() for phase in STYLES}
    shown = {phase: widths for phase, widths in by_phase.items() if widths.max() > LEAST_SEEN * longest}
    names = [STYLES[phase][0] for phase in shown]
    answer = find_answer(results)
    title = (answer and answer.step_sentence) or "Where the time of a step goes"
    num_steps = plural_of_several([*map(len, all_parts)], "step")
    about = f"{describe_rows(results.ok_runs)}\n{num_steps} a bar, after the windows"
    axis_label = "milliseconds of a step"
    figure, axes = make_rows(title, about, labels, ["ms [95 %]", *texts], axis_label, names)
    handles = []
    for phase, widths in shown.items():
        _, color, hatch = STYLES[phase]
        drawn = axes.barh(
            range(len(bars)), widths, 0.7, ends, color=color, hatch=hatch, edgecolor="black", linewidth=0.6
        )
        inside = [format_number(width) if width > 0.07 * longest else "" for width in widths]
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
        axes.bar_label(drawn, inside, label_type="center", fontsize=6.5, bbox=box)
        handles.append(drawn)
        ends += widths
    axes.set_xlim(0, 1.01 * longest)
    draw_legend(figure, handles, names)
    return figure
