"""The chart of where the time of a step goes, by the step breakdown of each strategy. Needs no torch."""

import dataclasses

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scripts.charts.figures import footnote, label_with_set, make_figure
from scripts.results.formatting import format_number, plural, printable
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.step_breakdown import (
    PHASES,
    PipelineBubble,
    StepMean,
    exposed_communication,
    mean_over_steps,
    pipeline_bubbles,
    step_parts,
)

PHASE_LABELS = {"data": "waiting for data", "copy": "copy to device", "exposed_comm": "exposed communication"}
PHASE_LABELS |= {"wait": "waiting for other ranks"}
COLORS_OF = ("#E69F00", "#F0E442", "#0072B2", "#56B4E9", "#D55E00", "#CC79A7", "#009E73", "#BBBBBB")
PHASE_COLORS = dict(zip(PHASES, COLORS_OF, strict=True))
HATCHES_OF = ("..", "----", "", "////", "xxxx", "++", "\\\\\\\\", "")  # dots and circles are large in SVG
PHASE_HATCHES = dict(zip(PHASES, HATCHES_OF, strict=True))


@dataclasses.dataclass(frozen=True)
class StepBar:
    """One bar of the step chart: a strategy, or a rank of a pipeline."""

    label: str
    parts: pandas.DataFrame
    group: RunGroup
    exposed: StepMean | None
    bubble: PipelineBubble | None = None

    @property
    def means(self) -> pandas.Series:
        return self.parts[[f"{phase}_ms" for phase in PHASES]].mean()

    @property
    def text(self) -> str:
        """What stands behind the bar: its length, the interval of what it shows, n."""
        names = [f"{phase}_ms" for phase in PHASES]
        step_ms = mean_over_steps([run[names].sum(axis=1).to_numpy() for _, run in self.parts.groupby("run_id")])
        text = f"{step_ms.text()} ms" if step_ms else ""
        if self.bubble:
            waits = self.bubble.waited.text(scale=100)
            text += f"; waits {waits} %, ideal {100 * self.bubble.ideal:.0f} %"
        elif self.exposed and self.exposed.low is not None:
            text += f"; exposed {self.exposed.text()}"
        return f"{text}  (n = {plural(len(self.parts), 'step')})"


def step_bars(sets: list[ResultSet]) -> list[StepBar]:
    """A bar for every strategy with a step breakdown; of a pipeline, one for each stage."""
    bars = []
    for results in sets:
        steps = results.table("steps")
        for group in results.groups:
            label = label_with_set(group, results, sets)
            label += "" if group.is_parallel else "\n(not parallel)"
            stages = pipeline_bubbles(group, steps)
            bars += [
                StepBar(f"{label}, rank {b.rank}", step_parts(group, steps, b.rank), group, None, b) for b in stages
            ]
            if not stages and len(parts := step_parts(group, steps)):
                bars.append(StepBar(label, parts, group, exposed_communication(group, steps)))
    return bars


def step_chart(sets: list[ResultSet]) -> Figure | None:
    """Mean milliseconds of each part of a training step, stacked, a bar a strategy, or a stage of a pipeline."""
    bars = step_bars(sets)
    if not bars:
        return None
    figure, (axes,), legend = make_figure("Where the time of a step goes", sets, [0.2 + 0.42 * max(2, len(bars))], 2)
    longest = max(bar.means.clip(lower=0).sum() for bar in bars)
    for place, bar in enumerate(bars):
        end = _draw_bar(axes, place, bar, least=0.07 * longest)
        axes.annotate(bar.text, (end, place), xytext=(4, 0), fontsize=6.5, textcoords="offset points", va="center")
    axes.set_xlim(0, 1.75 * longest)
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds, mean over accounted steps")
    shown = [phase for phase in PHASES if any(bar.means[f"{phase}_ms"] > 0 for bar in bars)]
    handles = [
        Patch(
            facecolor=PHASE_COLORS[phase],
            hatch=PHASE_HATCHES[phase],
            edgecolor="black",
            label=PHASE_LABELS.get(phase, phase),
        )
        for phase in shown
    ]
    legend.legend(handles=handles, loc="center", ncols=4, frameon=False, fontsize=7)
    footnote(figure, _step_notes(bars))
    return figure


def _draw_bar(axes: Axes, place: int, bar: StepBar, least: float) -> float:
    """The parts of one bar, paler where it is not parallel, with the interval of the exposed part; returns its end.

    least: milliseconds of a part that has room for its figure.
    """
    left, means = 0.0, bar.means
    for phase in PHASES:
        width = means[f"{phase}_ms"]
        if not width > 0:  # unknown, or below zero by noise
            continue
        axes.barh(
            place,
            width,
            left=left,
            height=0.7,
            color=PHASE_COLORS[phase],
            hatch=PHASE_HATCHES[phase],
            edgecolor="black",
            linewidth=0.6,
            alpha=1.0 if bar.group.is_parallel else 0.45,
        )
        if phase == "exposed_comm" and bar.exposed and bar.exposed.low is not None and bar.exposed.high is not None:
            ends = [max(0.0, left + bound) for bound in (bar.exposed.low, bar.exposed.high)]
            axes.plot(ends, [place - 0.27] * 2, color="black", linewidth=1.3, marker="|", markersize=5)
        if width > least:
            axes.text(
                left + width / 2,
                place,
                format_number(width),
                ha="center",
                va="center",
                fontsize=6.5,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
            )
        left += width
    return left


def _step_notes(bars: list[StepBar]) -> list[str]:
    notes = [
        "accounted steps come after the timed windows, with marks between the parts; the parts sum to the step, "
        "which has a 95 % interval."
    ]
    below = [
        f"{PHASE_LABELS.get(phase, phase)} of {printable(bar.label.splitlines()[0])} "
        f"({bar.means[f'{phase}_ms']:.2g} ms)"
        for bar in bars
        for phase in PHASES
        if bar.means[f"{phase}_ms"] < 0
    ]
    if below:
        notes.append(
            "below zero by noise, so not drawn, and the stack is longer than the printed step by it: "
            f"{', '.join(below)}."
        )
    if any(bar.exposed and bar.exposed.low is not None for bar in bars):
        notes.append(
            "exposed communication: what forward and backward take longer with the communication of gradients than "
            "without it, on the lowest rank; line and ±: 95 % interval over the runs. "
            "Below zero it is noise."
        )
    if any(bar.bubble for bar in bars):
        notes.append(
            "waits: a pipeline's bubble and messages, in % of its forward, backward and waiting; ideal: (p - 1) / (m + "
            "p - 1), of p equal stages and m micro-batches."
        )
    if any(not bar.group.is_parallel for bar in bars):
        notes.append("pale: not parallel, it had nothing to divide the work over.")
    if any(bar.parts.exposed_comm_ms.isna().all() and not bar.bubble for bar in bars):
        notes.append("without a red part: communication cannot be left out there, and is within the other parts.")
    return notes
