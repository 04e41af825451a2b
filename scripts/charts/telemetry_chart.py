"""The chart of the machine during the runs: utilisation, memory and power over time."""

import pandas
from matplotlib.figure import Figure

from scripts.charts.figures import draw_legend, line_style, make_figure
from scripts.results.device_use import drop_unused_gpus
from scripts.results.result_set import ResultSet
from scripts.results.set_text import describe_rows

# title: device, column of telemetry.csv, factor
PANELS = {
    "CPU, % of all cores": ("cpu", "util_pct", 1),
    "host memory, GB": ("cpu", "memory_used_mb", 1e-3),
    "GPU, %, mean of GPUs": ("gpu", "util_pct", 1),
    "GPU memory, GB, mean of GPUs": ("gpu", "memory_used_mb", 1e-3),
    "power, W, mean of GPUs": ("gpu", "power_w", 1),
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
    about = f"{describe_rows(results.ok_runs)}\nof the whole machine; of GPUs those that the run uses"
    figure, panels = make_figure(title, about, heights, 2, labels)
    handles = {}
    for (title, label), series in lines.items():
        style = line_style(labels.index(label)) | {"markevery": max(1, len(series) // 6)}
        (handles[label],) = panels[titles.index(title)].plot(series, **style)
    for title, axes in zip(titles, panels, strict=False):
        axes.set_title(title)
        axes.margins(y=0.1)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("seconds since the start of the run")
        axes.grid(alpha=0.3)
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    draw_legend(figure, [*handles.values()], [*handles])
    return figure


def telemetry_series(rows: pandas.DataFrame, title: str) -> pandas.Series:
    """One of PANELS over the seconds of a run; rows: the samples of that run.

    The n-th rows of all devices are one sample, since each GPU is read at a moment of its own.
    """
    device, column, factor = PANELS[title]
    mine = rows[rows.device.str.startswith(device)]
    samples = mine.groupby(mine.groupby("device").cumcount())[["t_s", column]].mean()
    return factor * samples.set_index("t_s")[column]
