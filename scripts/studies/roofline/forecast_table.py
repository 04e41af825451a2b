"""The forecast for GPUs, beside the measurements of a set: a table of the report.

The roofs are of results/published/measured/forecast.csv, which `./bench study roofline --output` writes. Each is a
forecast until a row of the set measures it. The rows below them are an estimate by reading (analysis.EXPECTED). Needs
no torch.
"""

import csv
from collections.abc import Sequence

from benchmarks.common.system.repository import ROOT
from scripts.sets.result_set import ResultSet
from scripts.sets.run_group import RunGroup
from scripts.stats.formatting import format_interval, format_number
from scripts.studies.roofline.analysis import EXPECTED, GPUS, Expectation

FORECAST = ROOT / "results/published/measured/forecast.csv"
FORECAST_HEADER = (
    "GPU", "precision", "compute roof", "bandwidth roof", "layer roof", "layer roof, fused", "forecast",
    "published by NVIDIA", "measured here",
)  # fmt: skip
ROOFS = ("compute_roof", "bandwidth_roof", "layer_roof", "layer_roof_fused")
FORECAST_EXPLANATION = (
    "Images/s of one GPU at most, by data-sheet peaks over the FLOPs and bytes of a traced step. Compute, bandwidth: "
    "if only that counted. Layer roof: each layer takes the longer of the two; fused: with each elementwise operation "
    "inside the kernel before it. Forecast: the shares of the layer roof that NVIDIA's published trainings reach, "
    "with channels_last where mixed precision; it is fitted to these, so agreement is no test. Rows with `eager` or "
    "`compiled`: an estimate by reading torch's sources and the data sheets, of November 2026, of synthetic images "
    "in channels_last; written before any run on these GPUs."
)


def forecast_table(results: ResultSet) -> tuple[str, list[list[str]]]:
    """(a sentence on the table, rows of text by FORECAST_HEADER); ('', []) where the file is missing."""
    if not FORECAST.exists():
        return "", []
    with open(FORECAST, encoding="utf-8", newline="") as file:
        forecast = list(csv.DictReader(file))
    rows, num_measured = [], 0
    for row in forecast:
        measured = measured_cell(row, results)
        num_measured += bool(measured)
        roofs = [format_number(float(row[name])) for name in ROOFS]
        low, high = row["forecast_low"], row["forecast_high"]
        ends = dict.fromkeys(format_number(float(end)) for end in (low, high) if end)
        band = " to ".join(ends) if len(ends) != 1 else f"about {next(iter(ends))}"
        published = format_number(float(row["published"])) if row["published"] else ""
        rows.append([row["gpu"], row["precision"], *roofs, band, published, measured or "forecast only"])
    for expected in EXPECTED:
        measured = expectation_cell(expected, results)
        num_measured += bool(measured)
        band = f"{format_number(expected.low)} to {format_number(expected.high)}"
        way = f"bf16, {'compiled' if expected.compiled else 'eager'}"
        rows.append([expected.gpu, way, *[""] * len(ROOFS), band, "", measured or "estimate only"])
    of = f"{forecast[0]['arch']}, {forecast[0]['image_size']} px, {forecast[0]['batch']} images a GPU"
    state = f"{num_measured} of {len(rows)} rows are measured in this set"
    state = state if num_measured else "nothing here is measured"
    return f"A forecast by reading, of {of}: {state}", rows


def measured_cell(row: dict[str, str], results: ResultSet) -> str:
    """The best images/s per GPU of the set's groups that measured a row of the forecast, and whether they confirm
    it; '' without such groups."""
    alike = [group for group in results.groups if group.throughput and matches(group, row)]
    ends = (float(row["forecast_low"]), float(row["forecast_high"])) if row["forecast_low"] else None
    return best_beside(alike, ends)


def expectation_cell(expected: Expectation, results: ResultSet) -> str:
    """The same of the groups that measured an expectation: the very work that it is of."""
    row = {"gpu": expected.gpu, "precision": "bf16", "arch": "resnet50", "image_size": "224", "batch": "256"}
    wanted = {"compile": expected.compiled, "memory_format": "channels_last", "loader": "synthetic"}
    alike = [
        group
        for group in results.groups
        if group.throughput and matches(group, row) and wanted.items() <= group.settings.items()
    ]
    return best_beside(alike, (expected.low, expected.high))


def best_beside(alike: Sequence[RunGroup], ends: tuple[float, float] | None) -> str:
    """The best images/s per GPU of these groups, and how it lies to the ends of a forecast; '' without groups."""
    if not alike:
        return ""
    best = max(alike, key=images_per_s_per_gpu)
    assert best.throughput is not None
    rate = images_per_s_per_gpu(best)
    scale = rate / best.throughput.value
    low, high = (None if end is None else end * scale for end in (best.throughput.low, best.throughput.high))
    words = " ".join(filter(None, [format_number(rate), format_interval(low, high, format_number), f"({best.label})"]))
    if ends is None:
        return words
    below, above = rate < ends[0], rate > ends[1]
    return f"{words}, {'below the forecast' if below else 'above the forecast' if above else 'as forecast'}"


def images_per_s_per_gpu(group: RunGroup) -> float:
    assert group.throughput is not None
    return group.throughput.value / max(1.0, float(group.ok_runs.world_size.iloc[0]))


def matches(group: RunGroup, row: dict[str, str]) -> bool:
    """Whether the group trained the model of the forecast's row on its GPU, in its precision and with its batch."""
    (device,) = [gpu.device_name for gpu in GPUS if gpu.name == row["gpu"]]
    run = group.ok_runs.iloc[0]
    images = run.global_batch / max(1.0, float(run.world_size))
    trained = (run.device_name, run.precision, run.arch, run.image_size, images)
    return trained == (device, row["precision"], row["arch"], float(row["image_size"]), float(row["batch"]))
