"""What 2 to 4,096 devices would give: step, exposed communication, waits and efficiency of each strategy, and a chart.

    python -m scripts.studies.predict.report --results results/latest            # make predict RESULTS=... LINK=...
    python -m scripts.studies.predict.report --machine h100x8 --out results/predict     # make predict MACHINE=h100x8

From one device's measured step, the moments at which its backward pass has each gradient (gradient_times.py), and
the links (make bench-allreduce), or a preset's. Weak: each device keeps its images; strong: they are shared out. Writes
predict.csv and a chart; the last line says how many devices are too many, and what would cure it. Needs no torch.
"""

import csv
import dataclasses
import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.common.store.results import format_cell, write_text_atomically
from benchmarks.common.system import machine as here_is
from benchmarks.common.system.errors import UserError
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
from scripts.sets.result_set import load_set
from scripts.sets.safe_names import refuse_links
from scripts.stats.formatting import format_interval, text_table
from scripts.studies.allreduce.links import Known, read_links
from scripts.studies.predict.machine_models import Given, baseline_of, h100x8, here, read_gradients, v100x4
from scripts.studies.predict.prediction_error import slowdown
from scripts.studies.predict.published_figures import PCIE_OVER_SXM, RESNET50
from scripts.studies.predict.scaling_forecast import ENOUGH, check_choices, outlook_rows, sentence
from scripts.studies.predict.step_model import Choices
from scripts.studies.roofline.forecast_table import FORECAST

COLUMNS = (
    "machine", "strategy", "mode", "devices", "images", "step_ms", "step_ms_low", "step_ms_high", "exposed_ms",
    "exposed_ms_low", "exposed_ms_high", "waits_ms", "waits_ms_low", "waits_ms_high", "efficiency", "efficiency_low",
    "efficiency_high", "why_not",
)  # fmt: skip
GPU_IMAGES = 256.0
STRONG = "strong: computing shrinks in proportion to images; too good where these are few"


@dataclasses.dataclass(frozen=True)
class Options:
    machine: Literal["here", "h100x8", "v100x4"] = "here"
    """`here`: what --results was measured on; or a preset, which trains ResNet-50 at 224 px."""
    results: Path = Path("results/latest")
    """A result set with accounted steps of the baseline, and gradients.csv."""
    link: Path = Path("results/allreduce/links.csv")
    """What make bench-allreduce fitted."""
    neighbours: Path = Path("results/predict-check")
    """What make predict-check measured: how much ranks side by side slow each other."""
    out: Path | None = None
    """Folder for predict.csv and the chart; default: the set, or results/predict."""
    between_gbit: float = 0.0
    """Gb/s between nodes of this machine's kind; 0: 10 are assumed. Presets have their own."""
    bucket_cap_mb: float = 0.0
    """DDP's buckets, MiB; 0: PyTorch's own."""
    local_period: int = 4
    """Local SGD: steps between two averages."""
    stages: int = 0
    """Of a pipeline; 0: a node's devices."""
    microbatches: int = 0
    """Of a pipeline's step; 0: the least multiple of the stages from 4 on."""


def main(options: Options) -> int:
    given = given_of(options)
    choices = Choices(options.bucket_cap_mb, options.local_period, options.stages, options.microbatches)
    check_choices(given, choices)
    rows = outlook_rows(given, choices)
    print(given.name, *(f"  {source}" for source in given.sources), "", table(rows), STRONG, sep="\n")
    out = options.out or (options.results if options.machine == "here" else Path("results/predict"))
    if not options.out:
        refuse_links(out)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {name: format_cell(value) for name, value in ({"machine": given.name} | row).items()} for row in rows
    )
    name = "predict" if options.machine == "here" else f"predict_{options.machine}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text_atomically(out / f"{name}.csv", text.getvalue())
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror}; name another folder: --out") from None
    written = [out / f"{name}.csv", *save_chart(predict_chart(given, rows), out / "charts", name)]
    print("\nwritten:", *(f"  {path}" for path in written), "", sentence(given, rows, choices), sep="\n")
    return 0


def given_of(options: Options) -> Given:
    if not 0 <= options.between_gbit < math.inf:
        raise UserError(f"--between-gbit is {options.between_gbit:g}, but must be Gb/s, or 0 for the 10 assumed")
    if options.between_gbit and options.machine != "here":
        raise UserError(f"--between-gbit is for nodes like this machine; {options.machine} has a network of its own")
    if options.machine == "here":
        results, fits = load_set(options.results), read_links(options.link)
        gradients = read_gradients(options.results / "gradients.csv")
        devices = max(here_is.num_gpus(), *(fit.ranks for fit in fits.values()))
        group = baseline_of(results)
        model = (group.settings.get("arch"), group.settings.get("image_size")) if group else ("", 0)
        return here(results, fits, gradients, devices, slowdown(options.neighbours, *model), options.between_gbit)
    gradients = read_gradients(RESNET50)
    if options.machine == "v100x4":
        rate = 1200 * PCIE_OVER_SXM
        return v100x4(gradients, Known(rate, 0.95 * rate, 1200.0), GPU_IMAGES)
    with open(FORECAST, encoding="utf-8", newline="") as file:
        (row,) = [row for row in csv.DictReader(file) if (row["gpu"], row["precision"]) == ("H100 SXM", "bf16")]
    low, high = float(row["forecast_low"]), float(row["forecast_high"])
    return h100x8(gradients, Known((low * high) ** 0.5, low, high), GPU_IMAGES)


def table(rows: Sequence[dict]) -> str:
    head = ("mode", "devices", "images", "strategy", "step, ms", "95 %", "exposed, ms", "waits, ms")
    lines = [(*head, "efficiency", "95 %", "")]
    for row in sorted(rows, key=lambda each: (each["mode"] != "weak", each["devices"])):
        cells = (row["mode"], f"{row['devices']:,}", f"{row['images']:g}", row["strategy"])
        if row["why_not"]:
            lines.append((*cells, "", "", "", "", "", "", row["why_not"]))
            continue
        bounds = [format_interval(row[f"{name}_low"], row[f"{name}_high"], style) for name, style in
                  (("step_ms", "{:.1f}".format), ("efficiency", "{:.2f}".format))]  # fmt: skip
        late = (f"{row['exposed_ms']:.2f}" if "exposed_ms" in row else "", f"{row['waits_ms']:.2f}")
        lines.append((*cells, f"{row['step_ms']:.1f}", bounds[0], *late, f"{row['efficiency']:.2f}", bounds[1], ""))
    return text_table(lines, left=(0, 3, 10))


def predict_chart(given: Given, rows: Sequence[dict]) -> Figure:
    """Efficiency over devices, weak and strong, a line a strategy with its interval as a band; dotted: 80 %."""
    names = [*dict.fromkeys(row["strategy"] for row in rows)]
    columns, legend_rows = legend_shape(names)
    title = "Predicted efficiency over devices"
    figure, panels, legend = make_figure(title, [], [2.6], legend_rows, num_columns=2, about=given.name)
    handles = []
    for axes, mode in zip(panels, ("weak", "strong"), strict=True):
        handles = [_draw(axes, number, [row for row in rows if (row["strategy"], row["mode"]) == (name, mode)])
                   for number, name in enumerate(names)]  # fmt: skip
        axes.axhline(100 * ENOUGH, color="black", linestyle=":", linewidth=0.9)
        axes.set_xscale("log", base=2)
        ticks = [2, 8, 32, 128, 512, 4096]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlim(1.7, 4096 * 1.2)
        axes.set_ylim(0, 108)
        axes.set_xlabel("devices")
        axes.grid(alpha=0.3)
        shared = "a device" if mode == "weak" else "in all, one a device at least"
        axes.set_title(f"{mode}: {given.images:g} images {shared}")
    panels[0].set_ylabel("efficiency, % of one device's speed")
    draw_legend(legend, handles, names, columns)
    bands = (
        "predicted, not measured; bands: 95 %, from the intervals of the inputs: the model's own error is not in the "
        "bands; dotted: 80 %"
    )
    footnote(figure, [bands, STRONG, *given.sources])
    return figure


def _draw(axes: Axes, number: int, rows: Sequence[dict]):
    good = [row for row in rows if not row["why_not"]]
    devices, color = [row["devices"] for row in good], LINE_COLORS[number % len(LINE_COLORS)]
    low, high = ([100 * row[f"efficiency_{end}"] for row in good] for end in ("low", "high"))
    axes.fill_between(devices, low, high, color=color, alpha=0.15, linewidth=0)
    style = {"color": color, "linestyle": LINES[number % len(LINES)], "marker": MARKERS[number], "markersize": 4}
    (line,) = axes.plot(devices, [100 * row["efficiency"] for row in good], linewidth=1.2, **style)
    return line


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Options, description=__doc__)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
