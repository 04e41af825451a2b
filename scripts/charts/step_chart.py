"""The chart of where the time of a step goes, by the step breakdown of each strategy. Needs no torch."""

import dataclasses
from typing import Any

import numpy
import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import add_note, draw_legend, make_figure, text_width, wrap
from scripts.results.answer import find_answer, table_groups
from scripts.results.formatting import format_number, plural_of_several
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_rows
from scripts.results.step_breakdown import (
    PHASES,
    mean_over_runs,
    pipeline_bubbles,
    shares_text,
    step_parts,
    step_shares,
)

COLUMNS = [f"{phase}_ms" for phase in PHASES]
PHASE_LABELS = {
    "data": "waiting for data",
    "copy": "copy to device",
    "exposed_comm": "exposed communication",
    "wait": "waiting for other ranks",
}
COLORS_OF = ("#E69F00", "#F0E442", "#0072B2", "#56B4E9", "#D55E00", "#CC79A7", "#009E73", "#BBBBBB")
HATCHES_OF = ("..", "----", "", "////", "xxxx", "++", "\\\\\\\\", "")  # dots and circles are large in SVG


@dataclasses.dataclass(frozen=True)
class StepBar:
    """One bar of the step chart: a strategy, or a rank of a pipeline."""

    label: str
    parts: pandas.DataFrame
    bubble: str = ""

    @property
    def text(self) -> str:
        """What stands beside the bar: its length with its interval, and of a pipeline its bubble."""
        step_ms = mean_over_runs(self.parts[COLUMNS].sum(axis=1), self.parts.run_id)
        return (step_ms.text() if step_ms else "") + self.bubble


def step_bars(results: ResultSet) -> list[StepBar]:
    """A bar for every strategy with a step breakdown; of a pipeline, one for each stage."""
    bars, steps = [], results.table("steps")
    for group in table_groups(results):
        stages = pipeline_bubbles(group, steps)
        for stage in stages:
            text = f"; waits {100 * stage.waited.value:.0f} %, ideal {100 * stage.ideal:.0f} %"
            bars.append(StepBar(f"{group.label}, rank {stage.rank}", step_parts(group, steps, stage.rank), text))
        if not stages and len(parts := step_parts(group, steps)):
            bars.append(StepBar(group.label + " (not parallel)" * (not group.is_parallel), parts))
    return bars


def step_chart(results: ResultSet) -> Figure | None:
    """Mean milliseconds of each part of a training step, stacked, a bar a strategy, or a stage of a pipeline."""
    bars = step_bars(results)
    if not bars:
        return None
    # unknown, or below zero by noise: not drawn
    means = numpy.array([bar.parts[COLUMNS].mean().fillna(0.0).clip(lower=0.0) for bar in bars])
    shown = [number for number in range(len(PHASES)) if means[:, number].any()]
    names = [PHASE_LABELS.get(PHASES[number], PHASES[number]) for number in shown]
    labels, texts, places = [wrap(bar.label, 30) for bar in bars], [bar.text for bar in bars], range(len(bars))
    longest, ends = means.sum(axis=1).max(), numpy.zeros(len(bars))
    figure, (axes,) = make_figure(
        _title(results),
        describe_rows(results.ok_runs),
        [0.3 * max(2, len(bars))],
        left=text_width(labels, size=8) + 0.2,
        right=text_width(texts, size=7) + 0.2,
        legend=names,
    )
    handles = []
    for number in shown:
        widths = means[:, number]
        style: dict[str, Any] = {
            "color": COLORS_OF[number],
            "hatch": HATCHES_OF[number],
            "edgecolor": "black",
            "linewidth": 0.6,
        }
        handles.append(axes.barh(places, widths, left=ends, height=0.7, **style))
        inside = [format_number(width) if width > 0.07 * longest else "" for width in widths]
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8}
        axes.bar_label(handles[-1], inside, label_type="center", fontsize=6.5, bbox=box)
        ends += widths
    axes.bar_label(handles[-1], texts, padding=4, fontsize=7)
    axes.set_xlim(0, 1.01 * longest)
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds of a step; beside the bar: its mean [95 %]")
    draw_legend(figure, handles, names)
    num_steps = plural_of_several([len(bar.parts) for bar in bars], "step")
    add_note(figure, f"n = {num_steps} a bar, after the timed windows. No exposed communication: it is in other parts.")
    return figure


def _title(results: ResultSet) -> str:
    """Where the step of the fastest strategy goes that has a breakdown."""
    answer = find_answer(results)
    for group in [*([answer.best] if answer else []), *results.groups]:
        if shares := step_shares(group, results.table("steps")):
            return f"Where a step of {group.label} goes: {shares_text(shares[:3])}"
    return "Where the time of a step goes"
