"""The report's own charts, as matplotlib figures: where a step goes, and the machine over time.

Each function returns None where the sets hold nothing to draw. Needs no torch.
"""

import numpy
import pandas
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from scripts.analysis.sets import Group, ResultSet
from scripts.analysis.words import clean, count, digits
from scripts.report.figures import COLORS, LINES, MARKERS, footnote, make_figure

PHASES = ("data", "copy", "forward", "backward", "exposed_comm", "optimizer", "other")
NAMES = {"data": "waiting for data", "copy": "copy to device", "exposed_comm": "exposed communication"}
PHASE_COLORS = dict(
    zip(PHASES, ("#E69F00", "#F0E442", "#0072B2", "#56B4E9", "#D55E00", "#009E73", "#BBBBBB"), strict=True)
)
PHASE_HATCHES = dict(zip(PHASES, ("....", "----", "", "////", "xxxx", "\\\\\\\\", ""), strict=True))
# device, column, title, factor, how the devices of one moment become one value
TELEMETRY = (
    ("cpu", "util_pct", "CPU, % of all cores", 1, "mean"),
    ("cpu", "memory_used_mb", "host memory, GB", 1e-3, "mean"),
    ("gpu", "util_pct", "GPU, %, mean of GPUs", 1, "mean"),
    ("gpu", "memory_used_mb", "GPU memory, GB, all GPUs", 1e-3, "sum"),
    ("gpu", "power_w", "power, W, all GPUs", 1, "sum"),
    ("cpu", "network_mb_per_s", "network, MB/s", 1, "mean"),
)
LEAST = 0.1  # a panel in which nothing rises above this tells nothing


def step_parts(group: Group, steps: pandas.DataFrame) -> pandas.DataFrame:
    """The accounted steps of a strategy's ok runs: a row a step, a column `<phase>_ms` for each of PHASES.

    Where the exchange could not be told from forward and backward, exposed_comm_ms is empty.
    """
    mine = steps[steps.run_id.isin(group.ok.run_id)]
    return mine[[f"{phase}_ms" for phase in PHASES]].dropna(
        axis=0, subset=[f"{p}_ms" for p in PHASES if p != "exposed_comm"]
    )


def step_chart(sets: list[ResultSet]) -> Figure | None:
    """Mean milliseconds of each part of a training step, stacked, a bar a strategy."""
    bars = []
    for results in sets:
        for group in results.groups:
            parts = step_parts(group, results.table("steps"))
            if len(parts):
                bars.append((_label(group, results, sets), parts, group))
    if not bars:
        return None
    figure, (axes,), legend = make_figure("Where the time of a step goes", sets, [0.2 + 0.42 * max(2, len(bars))], 2)
    longest = max(parts.mean().clip(lower=0).sum() for _, parts, _ in bars)
    for place, (_, parts, group) in enumerate(bars):
        left, means = 0.0, parts.mean()
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
            )
            if width > 0.07 * longest:
                axes.text(
                    left + width / 2,
                    place,
                    digits(width),
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.8},
                )
            left += width
        steps_text = count(len(parts), "step")
        overlap = group.ok.overlap_pct.median()
        hidden = "" if overlap != overlap else f", {overlap:.0f} % hidden" if overlap > 0 else ", none hidden"
        axes.annotate(
            f"{digits(means.sum())} ms  (n = {steps_text}{hidden})",
            (left, place),
            xytext=(4, 0),
            fontsize=7,
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )
    axes.set_xlim(0, 1.42 * longest)
    axes.set_ylim(max(len(bars), 2) - 0.4, -0.6)
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds, mean over accounted steps")
    handles = [
        Patch(
            facecolor=PHASE_COLORS[phase], hatch=PHASE_HATCHES[phase], edgecolor="black", label=NAMES.get(phase, phase)
        )
        for phase in PHASES
    ]
    legend.legend(handles=handles, loc="center", ncols=4, frameon=False, fontsize=7)
    notes = ["accounted steps come after the timed windows, with marks between the parts; the parts sum to the step."]
    if any(parts.exposed_comm_ms.notna().any() for _, parts, _ in bars):
        notes.append(
            "exposed communication: what forward and backward take longer with the exchange of gradients than without "
            "it. hidden: the share of the exchange, timed alone, that the backward pass covers."
        )
    if any(parts.exposed_comm_ms.isna().all() for _, parts, _ in bars):
        notes.append("without a red part: the exchange cannot be left out there, and is within forward and backward.")
    if any(parts.exposed_comm_ms.mean() < 0 for _, parts, _ in bars):
        notes.append("an exposed communication below zero is noise: it is smaller than this data can show.")
    footnote(figure, notes)
    return figure


def telemetry_chart(sets: list[ResultSet]) -> Figure | None:
    """Utilisation, memory, power and network over the time of each ok run, a colour a strategy."""
    lines = [
        (_label(group, results, sets), results.table("telemetry"), group)
        for results in sets
        for group in results.groups
        if results.table("telemetry").run_id.isin(group.ok.run_id).any()
    ]
    panels = [panel for panel in TELEMETRY if any(_series(samples, group, panel) for _, samples, group in lines)]
    if not panels:
        return None
    num_rows = (len(panels) + 1) // 2
    num_legend_columns = max(1, min(3, 110 // max(len(label) + 20 for label, _, _ in lines)))
    num_legend_rows = -(-len(lines) // num_legend_columns)
    figure, axes_list, legend = make_figure(
        "The machine during the runs", sets, [1.5] * num_rows, num_legend_rows, num_columns=2
    )
    for axes in axes_list[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(axes_list, panels, strict=False):
        for number, (label, samples, group) in enumerate(lines):
            color, style = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
            words = f"{clean(label)} (n = {count(len(group.ok), 'run')})"
            for repeat, (seconds, values) in enumerate(_series(samples, group, panel)):
                axes.plot(
                    seconds,
                    values,
                    color=color,
                    linestyle=style,
                    linewidth=1.1 if repeat == 0 else 0.5,
                    marker=MARKERS[number % len(MARKERS)] if repeat == 0 else None,
                    markersize=3.5,
                    markevery=max(1, len(seconds) // 6),
                    markerfacecolor="none",
                    label=words if repeat == 0 else None,
                )
        axes.set_title(panel[2])
        axes.set_ylim(bottom=0, top=105 if panel[1] == "util_pct" else None)
        axes.set_xlabel("seconds since the start of the run")
        axes.grid(alpha=0.3)
    labelled = [pair for axes in axes_list for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {text: handle for handle, text in labelled}
    legend.legend(
        handles.values(),
        handles.keys(),
        loc="center",
        ncols=num_legend_columns,
        fontsize=7,
        frameon=False,
        handlelength=4,
    )
    footnote(figure, ["sampled twice a second beside each run, the whole machine; thick with markers: the first run."])
    return figure


def _series(samples: pandas.DataFrame, group: Group, panel: tuple) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """(seconds, values) of each ok run for a panel of TELEMETRY."""
    device, column, _, factor, how = panel
    mine = samples[samples.device.str.startswith(device) & samples[column].notna() & samples.t_s.notna()]
    found = []
    for run_id in group.ok.run_id:
        line = mine[mine.run_id == run_id].groupby("t_s")[column].agg(how)
        if len(line) > 1 and factor * line.max() > LEAST:
            found.append((line.index.to_numpy(float), factor * line.to_numpy(float)))
    return found


def _label(group: Group, results: ResultSet, sets: list[ResultSet]) -> str:
    return clean(f"{group.label} in {results.name}" if len(sets) > 1 else group.label)
