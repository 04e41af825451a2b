"""The chart of the machine during the runs: utilisation, memory, power and network over time. Needs no torch."""

import numpy
import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import (
    COLORS,
    LINES,
    MARKERS,
    draw_legend,
    footnote,
    label_with_set,
    legend_shape,
    make_figure,
)
from scripts.sets.result_set import ResultSet, RunGroup
from scripts.stats.formatting import plural

# device, column, title, factor, how the devices of one sample become one value
TELEMETRY = (
    ("cpu", "util_pct", "CPU, % of all cores", 1, "mean"),
    ("cpu", "memory_used_mb", "host memory, GB", 1e-3, "mean"),
    ("gpu", "util_pct", "GPU, %, mean of GPUs", 1, "mean"),
    ("gpu", "memory_used_mb", "GPU memory, GB, all GPUs", 1e-3, "sum"),
    ("gpu", "power_w", "power, W, all GPUs", 1, "sum"),
    ("cpu", "network_mb_per_s", "network, MB/s", 1, "mean"),
)
LEAST_SHOWN = 0.1  # a panel in which nothing rises above this tells nothing


def telemetry_chart(sets: list[ResultSet]) -> Figure | None:
    """Utilisation, memory, power and network over the time of each ok run, a colour a strategy."""
    lines = [
        (label_with_set(group, results, sets), results.table("telemetry"), group)
        for results in sets
        for group in results.groups
        if results.table("telemetry").run_id.isin(group.ok_runs.run_id).any()
    ]
    panels = [panel for panel in TELEMETRY if any(_series(samples, group, panel) for _, samples, group in lines)]
    if not panels:
        return None
    num_rows = (len(panels) + 1) // 2
    labels = [f"{label} (n = {plural(len(group.ok_runs), 'run')})" for label, _, group in lines]
    num_legend_columns, num_legend_rows = legend_shape(labels)
    figure, axes_list, legend = make_figure(
        "The machine during the runs", sets, [1.5] * num_rows, num_legend_rows, num_columns=2
    )
    for axes in axes_list[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(axes_list, panels, strict=False):
        for number, (_, samples, group) in enumerate(lines):
            color, style = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
            for place, (seconds, values) in enumerate(_series(samples, group, panel)):
                axes.plot(
                    seconds,
                    values,
                    color=color,
                    linestyle=style,
                    linewidth=1.1 if place == 0 else 0.5,
                    marker=MARKERS[number % len(MARKERS)] if place == 0 else None,
                    markersize=3.5,
                    markevery=max(1, len(seconds) // 6),
                    markerfacecolor="none",
                    label=labels[number] if place == 0 else None,
                )
        axes.set_title(panel[2])
        axes.set_ylim(bottom=0, top=105 if panel[1] == "util_pct" else None)
        axes.set_xlabel("seconds since the start of the run")
        axes.grid(alpha=0.3)
    labelled = [pair for axes in axes_list for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    handles = {text: handle for handle, text in labelled}
    draw_legend(legend, [*handles.values()], [*handles], num_legend_columns)
    footnote(figure, ["sampled beside each run, the whole machine; thick with markers: the first run."])
    return figure


def _series(samples: pandas.DataFrame, group: RunGroup, panel: tuple) -> list[tuple[numpy.ndarray, numpy.ndarray]]:
    """(seconds, values) of each ok run for a panel of TELEMETRY.

    GPUs are read one after the other, and each with an energy counter has a t_s of its own. So the first rows of all
    devices are one sample, the second rows another. A sum leaves out samples in which one device gave no value.
    """
    device, column, _, factor, how = panel
    mine = samples[samples.device.str.startswith(device) & samples.t_s.notna()]
    found = []
    for run_id in group.ok_runs.run_id:
        of_run = mine[mine.run_id == run_id].sort_values("t_s", kind="stable")
        of_run = of_run.assign(number=of_run.groupby("device").cumcount())
        values = of_run.pivot(index="number", columns="device", values=column).dropna(axis=1, how="all")
        line = (values.sum(axis=1, skipna=False) if how == "sum" else values.mean(axis=1)).dropna()
        if len(values.columns) and len(line) > 1 and factor * line.max() > LEAST_SHOWN:
            seconds = of_run.groupby("number").t_s.mean()[line.index]
            found.append((seconds.to_numpy(float), factor * line.to_numpy(float)))
    return found
