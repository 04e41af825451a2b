"""The chart of the machine during the runs: utilisation, memory and power over time."""

import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import add_note, draw_legend, line_style, make_figure
from scripts.results.device_use import drop_unused_gpus
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_rows

# title: device, column of telemetry.csv, factor, how the devices of a sample become one value
PANELS = {
    "CPU, % of all cores": ("cpu", "util_pct", 1, "mean"),
    "host memory, GB": ("cpu", "memory_used_mb", 1e-3, "mean"),
    "GPU, %, mean of GPUs": ("gpu", "util_pct", 1, "mean"),
    "GPU memory, GB, all GPUs": ("gpu", "memory_used_mb", 1e-3, "sum"),
    "power, W, all GPUs": ("gpu", "power_w", 1, "sum"),
}
LEAST_SHOWN = 0.1  # a panel in which nothing rises above this shows nothing


def telemetry_chart(results: ResultSet) -> Figure | None:
    """Each panel over the time of each strategy's first sampled run."""
    samples = drop_unused_gpus(results.table("telemetry"), results.ok_runs)
    by_group = {group.label: samples[samples.run_id.isin(group.ok_runs.run_id)] for group in results.groups}
    first_runs = {label: rows[rows.run_id == rows.run_id.iloc[0]] for label, rows in by_group.items() if len(rows)}
    lines = {
        (title, label): series
        for title in PANELS
        for label, rows in first_runs.items()
        if (series := telemetry_series(rows, title)).max() > LEAST_SHOWN
    }
    titles = list(dict.fromkeys(title for title, _ in lines))
    if not titles:
        return None
    labels = list(first_runs)
    heights = [1.5] * ((len(titles) + 1) // 2)
    title = "The machine during the first run of each strategy"
    figure, panels = make_figure(title, describe_rows(results.ok_runs), heights, 2, left=0.4, legend=labels)
    handles = {}
    for (title, label), series in lines.items():
        style = line_style(labels.index(label)) | {"markevery": max(1, len(series) // 6)}
        (handles[label],) = panels[titles.index(title)].plot(series, **style)
    for title, axes in zip(titles, panels, strict=False):
        axes.set_title(title)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds since the start of the run")
        axes.grid(alpha=0.3)
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    draw_legend(figure, [*handles.values()], [*handles])
    add_note(figure, "Sampled beside the run, of the whole machine; of GPUs those that the run uses.")
    return figure


def telemetry_series(rows: pandas.DataFrame, title: str) -> pandas.Series:
    """One of PANELS over the seconds of a run; rows: the samples of that run.

    The n-th rows of all devices are one sample, since each GPU is read at a moment of its own. One that lacks a GPU
    would be a dip in a sum, and is left out.
    """
    device, column, factor, how = PANELS[title]
    mine = rows[rows.device.str.startswith(device) & rows.t_s.notna()].sort_values("t_s", kind="stable")
    samples = mine.groupby(mine.groupby("device").cumcount())
    whole = samples[column].count() == mine[mine[column].notna()].device.nunique()
    return (factor * samples[column].agg(how))[whole].set_axis(samples.t_s.mean()[whole])
