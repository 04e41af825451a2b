"""The scaling forecast for 2 to 4,096 devices: step, exposed communication, waits and efficiency, and a chart.

    ./bench study predict --results results/latest
    ./bench study predict --machine h100x8 --out results/predict

The inputs are one device's measured step, the moments at which its backward pass has each gradient (gradient_times.py),
and the links (./bench study allreduce); or the numbers of a preset. Weak scaling: each device keeps its images. Strong
scaling: the images are divided. Writes predict.csv and a chart. The last line says up to how many devices DDP is
efficient, and what would help. Needs no torch.
"""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.store.safe_cells import table_text
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import make_own_folder
from benchmarks.common.system.machine import num_gpus
from scripts.charts.figures import (
    LINE_COLORS,
    LINES,
    MARKERS,
    draw_legend,
    footnote,
    legend_shape,
    make_figure,
    save_chart,
)
from scripts.options.study_options import PredictOptions
from scripts.sets.own_set import refuse_foreign_set
from scripts.sets.result_set import load_set
from scripts.stats.formatting import format_interval, text_table
from scripts.studies.allreduce.links import read_links
from scripts.studies.allreduce.uncertain_value import UncertainValue
from scripts.studies.predict.machine_models import (
    MachineModel,
    h100x8,
    read_gradients,
    v100x4,
)
from scripts.studies.predict.measured_machine import baseline_of, this_machine
from scripts.studies.predict.prediction_error import measured_slowdown
from scripts.studies.predict.published_figures import PCIE_OVER_SXM, RESNET50
from scripts.studies.predict.scaling_forecast import (
    EFFICIENT,
    Row,
    check_options,
    scaling_forecast_rows,
    summary_sentence,
)
from scripts.studies.predict.step_model import StrategyOptions
from scripts.studies.roofline.forecast_table import FORECAST

PREDICT_COLUMNS = (
    "machine", "strategy", "mode", "devices", "images", "step_ms", "step_ms_low", "step_ms_high", "exposed_ms",
    "exposed_ms_low", "exposed_ms_high", "waits_ms", "waits_ms_low", "waits_ms_high", "efficiency", "efficiency_low",
    "efficiency_high", "why_not",
)  # fmt: skip
PRESET_IMAGES = 256.0  # per device and step
STRONG_CAVEAT = "strong: computing shrinks in proportion to images; too good where these are few"


def main(options: PredictOptions) -> int:
    machine = machine_model(options)
    strategy_options = StrategyOptions(
        options.bucket_cap_mb, options.local_period, options.stages, options.microbatches
    )
    check_options(machine, strategy_options)
    rows = scaling_forecast_rows(machine, strategy_options)
    print(machine.name, *(f"  {source}" for source in machine.sources), "", table(rows), STRONG_CAVEAT, sep="\n")
    out = options.out or (options.results if options.machine == "here" else Path("results/predict"))
    name = "predict" if options.machine == "here" else f"predict_{options.machine}"
    try:
        make_own_folder(out, "name a folder that you have made: --out")
        if not options.out:
            refuse_foreign_set(out)
        write_text_atomically(out / f"{name}.csv", csv_text(machine, rows))
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror}; name another folder: --out") from None
    written = [out / f"{name}.csv", *save_chart(predict_chart(machine, rows), out / "charts", name)]
    sentence = summary_sentence(machine, rows, strategy_options)
    print("\nwritten:", *(f"  {path}" for path in written), "", sentence, sep="\n")
    return 0


def csv_text(machine: MachineModel, rows: Sequence[Row]) -> str:
    """The content of predict.csv."""
    return table_text(PREDICT_COLUMNS, [{"machine": machine.name} | row for row in rows])


def machine_model(options: PredictOptions) -> MachineModel:
    """The model of the machine that the options name. Raises UserError where one of its inputs is missing or wrong."""
    if not 0 <= options.between_gbit < math.inf:
        raise UserError(f"--between-gbit is {options.between_gbit:g}, but must be Gb/s, or 0 for the 10 assumed")
    if options.between_gbit and options.machine != "here":
        raise UserError(f"--between-gbit is for nodes like this machine; {options.machine} has a network of its own")
    if options.machine == "here":
        return _measured_model(options)
    gradients = read_gradients(RESNET50)
    if options.machine == "v100x4":
        rate = 1200 * PCIE_OVER_SXM
        return v100x4(gradients, UncertainValue(rate, 0.95 * rate, 1200.0), PRESET_IMAGES)
    with open(FORECAST, encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["gpu"], row["precision"]) == ("H100 SXM", "bf16")]
    low, high = float(row["forecast_low"]), float(row["forecast_high"])
    return h100x8(gradients, UncertainValue((low * high) ** 0.5, low, high), PRESET_IMAGES)


def _measured_model(options: PredictOptions) -> MachineModel:
    results, fits = load_set(options.results), read_links(options.link)
    gradients = read_gradients(options.results / "gradients.csv")
    devices_per_node = max(num_gpus(), *(fit.ranks for fit in fits.values()))
    slowdown = None
    if (group := baseline_of(results)) is not None:
        run = group.ok_runs.iloc[0]
        slowdown = measured_slowdown(options.neighbours, run.arch, int(run.image_size))
    return this_machine(results, fits, gradients, devices_per_node, slowdown, options.between_gbit)


def table(rows: Sequence[Row]) -> str:
    """The rows as text."""
    head = ("mode", "devices", "images", "strategy", "step, ms", "95 %", "exposed, ms", "waits, ms")
    lines = [(*head, "efficiency", "95 %", "")]
    for row in sorted(rows, key=lambda row: (row["mode"] != "weak", row["devices"])):
        cells = (row["mode"], f"{row['devices']:,}", f"{row['images']:g}", row["strategy"])
        if row["why_not"]:
            lines.append((*cells, "", "", "", "", "", "", row["why_not"]))
            continue
        step_bounds = format_interval(row["step_ms_low"], row["step_ms_high"], "{:.1f}".format)
        efficiency_bounds = format_interval(row["efficiency_low"], row["efficiency_high"], "{:.2f}".format)
        exposed_ms = f"{row['exposed_ms']:.2f}" if "exposed_ms" in row else ""
        times = (f"{row['step_ms']:.1f}", step_bounds, exposed_ms, f"{row['waits_ms']:.2f}")
        lines.append((*cells, *times, f"{row['efficiency']:.2f}", efficiency_bounds, ""))
    return text_table(lines, left_aligned=(0, 3, 10))


def predict_chart(machine: MachineModel, rows: Sequence[Row]) -> Figure:
    """Efficiency over the number of devices, weak and strong: a line per strategy with its interval as a band."""
    names = [*dict.fromkeys(row["strategy"] for row in rows)]
    columns, legend_rows = legend_shape(names)
    title = "Predicted efficiency over devices"
    figure, panels, legend = make_figure(title, [], [2.6], legend_rows, num_columns=2, about=machine.name)
    handles: list[Line2D] = []
    for axes, mode in zip(panels, ("weak", "strong"), strict=True):
        handles = [_draw_strategy(axes, number, [row for row in rows if (row["strategy"], row["mode"]) == (name, mode)])
                   for number, name in enumerate(names)]  # fmt: skip
        axes.axhline(100 * EFFICIENT, color="black", linestyle=":", linewidth=0.9)
        axes.set_xscale("log", base=2)
        ticks = [2, 8, 32, 128, 512, 4096]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(1.7, 4096 * 1.2)
        axes.set_ylim(0, 108)
        axes.set_xlabel("devices")
        axes.grid(alpha=0.3)
        shared = "a device" if mode == "weak" else "in all, one a device at least"
        axes.set_title(f"{mode}: {machine.step.images:g} images {shared}")
    panels[0].set_ylabel("efficiency, % of one device's speed")
    draw_legend(legend, handles, names, columns)
    bands = (
        "predicted, not measured; bands: 95 %, from the intervals of the inputs: the model's own error is not in the "
        "bands; dotted: 80 %"
    )
    footnote(figure, [bands, STRONG_CAVEAT, *machine.sources])
    return figure


def _draw_strategy(axes: Axes, number: int, rows: Sequence[Row]) -> Line2D:
    good = [row for row in rows if not row["why_not"]]
    devices, color = [row["devices"] for row in good], LINE_COLORS[number % len(LINE_COLORS)]
    low, high = ([100 * row[f"efficiency_{end}"] for row in good] for end in ("low", "high"))
    axes.fill_between(devices, low, high, color=color, alpha=0.15, linewidth=0)
    style: dict[str, Any] = {
        "color": color,
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKERS[number],
        "markersize": 4,
    }
    (line,) = axes.plot(devices, [100 * row["efficiency"] for row in good], linewidth=1.2, **style)
    return line
