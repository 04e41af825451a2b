"""The sentences and tables of a report. Every value is text, computed from the CSV files of one set.

Needs no torch.
"""

from collections.abc import Callable

import numpy
import pandas

from scripts.report.study_sections import ReportTable
from scripts.results.device_use import device_use
from scripts.results.families import log_table
from scripts.results.formatting import format_number, format_with_interval
from scripts.results.independence import shared_drift_p_value
from scripts.results.intervals import Estimate, RatioEstimate, mean_interval
from scripts.results.proofs import proof_text, short_proof
from scripts.results.result_set import ResultSet
from scripts.results.run_group import RunGroup
from scripts.results.step_breakdown import exposed_communication
from scripts.results.strategy_cells import strategy_cells

REPORT_COLUMNS = (
    "strategy", "images/s", "n", "x single", "efficiency", "same update?", "status", "top-1 %", "val images",
    "step p50 ms", "step p95 ms", "exposed comm. ms", "memory MB", "TFLOP/s", "MFU %", "J/image",
)  # fmt: skip
DRIFT_LEVEL = 0.05  # p-value below which a page says that all strategies drift together
SUMMARY_COLUMNS = ("strategy", "images/s", "x single", "same update?", "memory MB", "top-1 %")
"""Of the first table; the other columns are in the table of all columns."""
SAME_UPDATE = (
    "whether, over some steps, the weights are identical to those of one process that runs the same parts in turn, bit "
    "for bit, or nearly, within the tolerance of rounding; they are not compared with those of single"
)
COLUMN_MEANINGS = (
    (
        "images/s",
        "geometric mean of the runs, each total images over total seconds in timed windows; 95 % interval over runs, "
        "which are assumed independent",
    ),
    (
        "x single",
        "throughput over that of one process in the same precision, which the cell names where it is not that of most; "
        "simultaneous 95 % intervals over rounds, of all strategies",
    ),
    (
        "efficiency",
        "with a batch a device, which is weak scaling: x single and its interval, over the number of devices",
    ),
    ("step p50, p95", "median and 95th percentile of a step, each the mean over runs, with its interval"),
    (
        "top-1 %, val images",
        "accuracy after the last epoch, over every validation image exactly once; 95 % interval over images, and over "
        "seeds where there are several",
    ),
    (
        "memory MB",
        "peak of the device that used most, mean over runs, 10^6 bytes: on a GPU what torch had allocated, on a CPU "
        "the process's resident memory",
    ),
    (
        "exposed comm. ms",
        "what the gradient exchange adds to forward and backward on the lowest rank, the wait for the slowest rank "
        "included: their time, minus that of a step on another batch without the exchange, mean over the steps of the "
        "breakdown",
    ),
    (
        "TFLOP/s, MFU %",
        "images/s x FLOPs an image (2 a multiply-add), and its share of the peak of all devices in the precision used; "
        "the interval of MFU is over runs and over the peaks that were measured, and is missing after one measurement",
    ),
    ("J/image", "energy of the run's GPUs, or of the CPU packages, in the timed windows"),
    ("same update?", SAME_UPDATE),
)
WALL_TEXT = (
    "Seconds: mean over n ok runs, ± half of its 95 % interval. Named: the share of wall_s that the parts add up to."
)


def table_rows(results: ResultSet) -> list[dict]:
    """A row a strategy; every value is text, empty where it was not measured."""
    return [_table_row(results, group) for group in results.groups]


def summary_rows(results: ResultSet, rows: list[dict]) -> list[dict[str, str]]:
    """The cells of SUMMARY_COLUMNS, a row a strategy: the fastest first, and last those without a time.

    rows: those of table_rows.
    """

    def speed(pair: tuple[RunGroup, dict]) -> float:
        return pair[0].timed_throughput.value if pair[0].windows_of_runs else 0.0

    pairs = sorted(zip(results.groups, rows, strict=True), key=speed, reverse=True)
    return [_summary_row(results, group, row) for group, row in pairs]


def _summary_row(results: ResultSet, group: RunGroup, row: dict) -> dict[str, str]:
    is_baseline = group.label in results.baseline_label_of.values()
    return {
        "strategy": group.label + ("" if group.is_parallel else " (not parallel)"),
        "images/s": row["images/s"] or row["status"],
        "x single": "baseline" if is_baseline else row["x single"],
        "same update?": short_proof(row["same update?"]),
        **{name: row[name].partition(" [")[0] for name in ("memory MB", "top-1 %")},
    }


def _table_row(results: ResultSet, group: RunGroup) -> dict:
    ok, estimate, over = group.ok_runs, group.throughput, results.speedups.get(group.label)
    row = dict.fromkeys(REPORT_COLUMNS, "") | strategy_cells(results, group)
    if over and (ok.batch_per_device > 0).all():
        row["efficiency"] = scale_with_interval(over.value / ok.world_size.iloc[0], over, "{:.2f}".format)
    if use := device_use(group, results.environment, results.other_peaks):
        row["TFLOP/s"] = scale_with_interval(use.tflops, estimate, "{:#.3g}".format)
        low, high = (100 * bound for bound in use.mfu_bounds) if use.mfu_bounds else (None, None)
        row["MFU %"] = "" if use.mfu is None else format_with_interval(100 * use.mfu, low, high, "{:.1f}".format)
    means = {"step p50 ms": "step_ms_p50", "step p95 ms": "step_ms_p95", "J/image": "energy_j_per_image"}
    for name, column in means.items():
        row[name] = _mean(ok[column])
    if exposed := exposed_communication(group, results.table("steps")):
        row["exposed comm. ms"] = exposed.text()
    row["val images"] = "/".join(f"{value:,.0f}" for value in sorted(set(ok.val_samples.dropna())))
    row["memory MB"] = _mean(ok.peak_memory_mb)
    row["same update?"] = proof_text(group, results.table("equivalence"))
    return row


def _mean(values: pandas.Series) -> str:
    values = values[numpy.isfinite(values)]
    if values.empty:
        return ""
    mean, low, high = mean_interval(values.to_numpy(float))
    return format_with_interval(mean, low, high, format_number)


def scale_with_interval(value: float, estimate: Estimate | RatioEstimate | None, style: Callable[[float], str]) -> str:
    """A value that is in proportion to a throughput or a ratio, with the interval of that."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return style(value)
    low, high = (value * bound / estimate.value for bound in (estimate.low, estimate.high))
    return format_with_interval(value, low, high, style)


def describe_aa(results: ResultSet) -> str:
    """What the A/A comparisons of a set found; '' for a set without one."""
    found = {
        "no difference seen": "the settings are equal, and no difference was seen",
        "faster": "the settings are equal: a false alarm, or an effect of the order of runs",
        "slower": "the settings are equal: a false alarm, or an effect of the order of runs",
    }
    sentences = []
    for label, over in results.aa_comparisons.items():
        baseline, verdict = results.baseline_label_of[label], found.get(over.verdict, over.verdict)
        if over.verdict == "no difference seen" and over.smallest_difference is not None:
            least = format_number(100 * over.smallest_difference)
            verdict += f"; the minimum detectable effect is {least} % (nominal power 80 %)"
        sentences.append(f"A/A: {label} over {baseline}, other runs with its settings, is {over.text()}: {verdict}.")
    return " ".join(sentences)


def describe_shared_drift(results: ResultSet) -> str:
    """That intervals over runs are probably too narrow, where the mean over strategies drifts; else ''."""
    if not (test := shared_drift_test(results)):
        return ""
    return (
        f"The mean over strategies drifts over the rounds ({test}). Intervals over runs of times and speeds, as of "
        "images/s, steps and MFU, assume independent runs, and are probably too narrow. By how much differs between "
        "strategies. Drift that is equal for all strategies cancels in x single; the rest does not."
    )


def shared_drift_test(results: ResultSet) -> str:
    """The test by which the mean over strategies drifts, and its p-value; '' where that is not seen."""
    p_value = shared_drift_p_value(log_table({group.label: group.sample for group in results.timed_groups}))
    return f"permutation test, p = {p_value:.2g}" if p_value < DRIFT_LEVEL else ""


def wall_tables(results: ResultSet) -> list[ReportTable]:
    """Where the wall clock of a run went, a row for each group with a wall.csv; no table without one."""
    wall = results.table("wall")
    parts = list(dict.fromkeys(wall.part))
    rows = []
    for group in results.groups:
        wall_of_group = wall[wall.run_id.isin(group.ok_runs.run_id)]
        if wall_of_group.empty:
            continue
        runs = group.ok_runs[group.ok_runs.run_id.isin(wall_of_group.run_id)]
        seconds = wall_of_group.pivot_table(index="run_id", columns="part", values="seconds", aggfunc="sum").reindex(
            runs.run_id
        )
        cells = ["" if part not in seconds else _plus_minus(seconds[part].fillna(0.0)) for part in parts]
        named = f"{100 * seconds.sum(axis=1).mean() / runs.wall_s.mean():.1f} %"
        rows.append([group.label, str(len(runs)), *cells, _plus_minus(runs.wall_s), named])
    header = ("strategy", "n", *parts, "wall_s", "named")
    return [ReportTable("Where the wall clock went", WALL_TEXT, header, rows)] if rows else []


def _plus_minus(values: pandas.Series) -> str:
    mean, low, high = mean_interval(values.to_numpy(float))
    return f"{round(mean, 2) + 0.0:.2f}" + ("" if low is None or high is None else f" ± {(high - low) / 2:.2f}")
