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
from scripts.results.formatting import plural
from scripts.results.result_set import ResultSet
from scripts.results.used_gpus import drop_unused_gpus

# device, column, title, factor, how the devices of one sample become one value
TELEMETRY = (
    ("cpu", "util_pct", "CPU, % of all cores", 1, "mean"),
    ("cpu", "memory_used_mb", "host memory, GB", 1e-3, "mean"),
    ("gpu", "util_pct", "GPU, %, mean of GPUs", 1, "mean"),
    ("gpu", "memory_used_mb", "GPU memory, GB, all GPUs", 1e-3, "sum"),
    ("gpu", "power_w", "power, W, all GPUs", 1, "sum"),
    ("cpu", "network_mb_per_s", "network, MB/s", 1, "mean"),
)
Line = tuple[numpy.ndarray, numpy.ndarray]
"""Seconds since the start of the run, and the values then."""
LEAST_SHOWN = 0.1  # a panel in which nothing rises above this shows nothing


def telemetry_chart(sets: list[ResultSet]) -> Figure | None:
    """Utilisation, memory, power and network over the time of each ok run, a colour a strategy."""
    samples_of_sets = [_in_order(drop_unused_gpus(results.table("telemetry"), results.ok_runs)) for results in sets]
    sampled = [
        (label_with_set(group, results, sets), group, number)
        for number, results in enumerate(sets)
        for group in results.groups
        if samples_of_sets[number].run_id.isin(group.ok_runs.run_id).any()
    ]
    series = {}
    for panel in TELEMETRY:
        by_run = [_lines_by_run(samples, panel) for samples in samples_of_sets]
        series[panel] = [
            [by_run[number][run_id] for run_id in group.ok_runs.run_id if run_id in by_run[number]]
            for _, group, number in sampled
        ]
    panels = [panel for panel in TELEMETRY if any(series[panel])]
    if not panels:
        return None
    num_rows = (len(panels) + 1) // 2
    labels = [f"{label} (n = {plural(len(group.ok_runs), 'run')})" for label, group, _ in sampled]
    num_legend_columns, num_legend_rows = legend_shape(labels)
    figure, axes_list, legend = make_figure(
        "The machine during the runs", sets, [1.5] * num_rows, num_legend_rows, num_columns=2
    )
    for axes in axes_list[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(axes_list, panels, strict=False):
        for number, lines in enumerate(series[panel]):
            color, style = COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]
            for place, (seconds, values) in enumerate(lines):
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
    what = "the whole machine" + ", and the GPUs that the run uses" * any(panel[0] == "gpu" for panel in panels)
    footnote(figure, [f"sampled beside each run, {what}; thick with markers: the first run."])
    return figure


def _in_order(samples: pandas.DataFrame) -> pandas.DataFrame:
    """The samples in the order of time, with a column `number`: the first rows of all of a run's devices are sample 0,
    since each GPU has a t_s of its own."""
    timed = samples[samples.t_s.notna()].sort_values("t_s", kind="stable")
    return timed.assign(number=timed.groupby(["run_id", "device"]).cumcount())


def _lines_by_run(samples: pandas.DataFrame, panel: tuple) -> dict[str, Line]:
    kind, column, _, factor, how = panel
    mine = samples[samples.device.str.startswith(kind)]
    num_devices = mine[mine[column].notna()].groupby("run_id").device.nunique()
    table = (
        mine.groupby(["run_id", "number"])
        .agg(seconds=("t_s", "mean"), value=(column, how), num_values=(column, "count"))
        .reset_index()
    )
    least = num_devices.reindex(table.run_id).to_numpy(float) if how == "sum" else 1
    found = {}
    for run_id, rows in table[table.num_values >= least].groupby("run_id"):
        values = factor * rows.value.to_numpy(float)
        if len(values) > 1 and values.max() > LEAST_SHOWN:
            found[str(run_id)] = (rows.seconds.to_numpy(float), values)
    return found
