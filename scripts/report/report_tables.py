"""The tables of a report: every value is text, empty where it was not measured."""

import pandas

from scripts.results.answer import strategy_cells, table_groups
from scripts.results.device_use import device_use
from scripts.results.formatting import format_with_interval
from scripts.results.intervals import mean_estimate
from scripts.results.proofs import proof_text
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.step_breakdown import exposed_communication

FIRST_COLUMNS = (
    "strategy", "devices", "images/s", "x single", "same update?", "memory MB", "J/image", "top-1 %",
)  # fmt: skip
COLUMN_MEANINGS = {
    "strategy": "a script in benchmarks/, and the settings in which its runs differ from others of it",
    "devices": "GPUs; on a CPU, ranks",
    "images/s": "geometric mean of the runs, each total images over total seconds in timed windows",
    "n": "timed runs",
    "x single": "images/s over those of one process in the same precision, paired by round, all ratios one family",
    "efficiency": "with a batch a device, which is weak scaling: x single over the number of devices",
    "same update?": "whether the weights, over some steps, are those of one process that runs the same parts in turn",
    "status": "how many of its runs ended how",
    "top-1 %": "accuracy after the last epoch, over every validation image once; interval over images, and over seeds",
    "val images": "images of the last evaluation",
    "step p50 ms": "median of a step, mean over runs",
    "step p95 ms": "95th percentile of a step, mean over runs",
    "exposed comm. ms": "what the gradient exchange adds to forward and backward on the lowest rank",
    "memory MB": "peak of the device that used most, 10^6 bytes: on a GPU of torch, on a CPU of the process",
    "TFLOP/s": "images/s x FLOPs an image (2 a multiply-add)",
    "MFU %": "its share of the peak of all devices in the precision used",
    "J/image": "energy of the run's GPUs, or of the CPU packages, in the timed windows",
}
MEANS = {
    "step p50 ms": "step_ms_p50",
    "step p95 ms": "step_ms_p95",
    "memory MB": "peak_memory_mb",
    "J/image": "energy_j_per_image",
}
Row = dict[str, str]


def first_rows(results: ResultSet) -> list[Row]:
    """Of FIRST_COLUMNS, the fastest strategy first; without columns in which nothing was measured."""
    return _without_empty_columns([_first_row(results, group) for group in table_groups(results) if group.throughput])


def all_rows(results: ResultSet) -> list[Row]:
    """The same of COLUMN_MEANINGS."""
    return _without_empty_columns([_row(results, group) for group in table_groups(results)])


def table_tex(results: ResultSet) -> str:
    """The first table as a LaTeX tabular, for the package booktabs."""
    rows = pandas.DataFrame(first_rows(results)).drop(columns="same update?", errors="ignore")
    return "" if rows.empty else rows.to_latex(index=False, escape=True, column_format=f"l{'r' * (rows.shape[1] - 1)}")


def _without_empty_columns(rows: list[Row]) -> list[Row]:
    return [{name: cell for name, cell in row.items() if any(each[name] for each in rows)} for row in rows]


def _first_row(results: ResultSet, group: RunGroup) -> Row:
    row = strategy_cells(results, group)
    row["same update?"] = proof_text(group, results.table("equivalence")).partition(":")[0]
    row["top-1 %"] = row["top-1 %"].partition(" [")[0]
    return {name: row[name] for name in FIRST_COLUMNS}


def _row(results: ResultSet, group: RunGroup) -> Row:
    ok, over = group.ok_runs, results.speedups.get(group.label)
    row = dict.fromkeys(COLUMN_MEANINGS, "") | strategy_cells(results, group)
    row |= {name: _mean(ok[column]) for name, column in MEANS.items()}
    row["same update?"] = proof_text(group, results.table("equivalence"))
    row["val images"] = "/".join(f"{value:,.0f}" for value in sorted(set(ok.val_samples.dropna())))
    if over and (ok.batch_per_device > 0).all():
        ranks = ok.world_size.iloc[0]
        low, high = (bound and bound / ranks for bound in (over.low, over.high))
        row["efficiency"] = format_with_interval(over.value / ranks, low, high, "{:.2f}".format)
    if use := device_use(group, results.environment):
        row["TFLOP/s"] = f"{use.tflops:#.3g}"
        row["MFU %"] = "" if use.mfu is None else f"{100 * use.mfu:.1f}"
    if exposed := exposed_communication(group, results.table("steps")):
        row["exposed comm. ms"] = exposed.text("{:.0f}".format)
    return row


def _mean(values: pandas.Series) -> str:
    values = values.dropna()
    return mean_estimate(values.to_numpy(float)).text() if len(values) else ""
