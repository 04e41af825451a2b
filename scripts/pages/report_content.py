"""The sentences and tables of a report. Every value is text, computed from the CSV files of one set.

    from scripts.pages.report_content import headline, table_rows

Needs no torch.
"""

import math
from collections.abc import Callable

import numpy
import pandas

from scripts.pages.study_sections import ReportTable
from scripts.sets.device_use import device_use, why_lower_mfu
from scripts.sets.epoch_time import EpochTime
from scripts.sets.identity import comparable, compute_precision
from scripts.sets.proofs import proof_text
from scripts.sets.result_set import BASELINE, ResultSet, RunGroup
from scripts.sets.step_breakdown import exposed_communication
from scripts.sets.strategy_cells import strategy_cells
from scripts.stats.families import method_text, ratios_to_fastest
from scripts.stats.formatting import format_interval, format_number, format_with_interval, plural, printable
from scripts.stats.intervals import Estimate, RatioEstimate, mean_interval

REPORT_COLUMNS = (
    "strategy",
    "images/s",
    "n",
    "x single",
    "efficiency",
    "same update?",
    "status",
    "top-1 %",
    "val images",
    "step p50 ms",
    "step p95 ms",
    "exposed comm. ms",
    "memory MB",
    "TFLOP/s",
    "MFU %",
    "J/image",
)
COLUMN_MEANINGS = (
    (
        "images/s",
        "geometric mean of the runs, each total images over total seconds in timed windows; 95 % interval over runs",
    ),
    (
        "x single",
        "throughput over that of one process in the same precision, with simultaneous 95 % intervals of all strategies",
    ),
    (
        "efficiency",
        "with a batch a device, which is weak scaling: x single and its interval, over the number of devices",
    ),
    ("step p50, p95", "median and 95th percentile of a step, each the mean over runs, with its interval"),
    (
        "top-1 %, val images",
        "accuracy after the last epoch, over every validation image exactly once, with its interval",
    ),
    (
        "memory MB",
        "most that one rank used, mean over runs: allocated by torch on a GPU, else resident memory, 10^6 bytes",
    ),
    (
        "exposed comm. ms",
        "how much longer a step of the lowest rank takes with the communication of gradients, mean over the "
        "steps of the breakdown",
    ),
    (
        "TFLOP/s, MFU %",
        "images/s x FLOPs an image (2 a multiply-add), and its share of the peak of all devices in the precision used",
    ),
    ("J/image", "energy of the run's GPUs, or of the CPU packages, in the timed windows"),
    (
        "same update?",
        "the weights after some steps with these settings, compared with one process that runs the shards in turn",
    ),
)
WALL_TEXT = (
    "Seconds: mean over n ok runs, ± half of its 95 % interval. Named: the share of wall_s that the parts add up to."
)


def headline(results: ResultSet) -> list[str]:
    """The set's result in sentences: the highest mean, its speed-up, and which other strategies differ from it."""
    timed = results.timed_groups
    if not timed:
        return ["No run has a throughput."]
    if results.contradictions:
        return [f"No verdict, since the set contradicts itself: {'; '.join(map(printable, results.contradictions))}."]
    ranked = results.ranked
    alike = max(([group for group in ranked if comparable(group.identity, of.identity)] for of in ranked), key=len)
    name, over_best = ratios_to_fastest({group.label: group.sample for group in alike})
    best = next(group for group in alike if group.label == name)
    excluded = bool(over_best) and all(over.verdict == "slower" for over in over_best.values())
    single = results.baseline_of(best)
    # a pair with the baseline has one interval everywhere
    over_best |= {
        group.label: results.over_baseline[group.label] for group in alike if results.baseline_of(group) is best
    }
    if single:
        over_best.pop(single.label, None)
    sentences = [_first_sentence(results, best, excluded)]
    seen = {label: over for label, over in over_best.items() if over.verdict in ("slower", "faster")}
    unseen = {label: over for label, over in over_best.items() if over.verdict == "no difference seen"}
    if unseen:
        least = max(over.smallest_difference or 0.0 for over in unseen.values())
        sentences.append(f"No difference seen between {best.label} and {_join([*unseen])}; {_describe_power(least)}.")
    if seen:
        sentences.append("; ".join(f"{label} is {_times(over)} {best.label}" for label, over in seen.items()) + ".")
    missing = dict.fromkeys(over.why for over in (over_best | results.over_baseline).values() if over.why)
    if missing:
        sentences.append(f"Figures without a verdict: {'; '.join(missing)}.")
    sentences += _not_ranked(results, [group for group in timed if group not in ranked])
    if len(alike) < len(ranked):
        others = [group.label for group in ranked if group not in alike]
        sentences.append(f"Not compared, since they ran on other settings: {_join(others)}.")
    if any(over.low is not None for over in (over_best | results.over_baseline).values()):
        sentences.append(
            f"[a, b] is a 95 % interval. Those over {BASELINE} are simultaneous "
            f"({method_text(len(results.baselines))}), and so are those over the highest mean, which was picked after "
            f"looking ({method_text(math.comb(len(alike), 2))})."
        )
    return sentences


def _not_ranked(results: ResultSet, others: list[RunGroup]) -> list[str]:
    """Sentences on the groups of another precision: the ratio to their own baseline, or that they have none."""
    bases, over = results.baselines, results.over_baseline
    compared = [
        f"{each.label} is {_times(over[each.label])} {bases[each.label]}" for each in others if each.label in bases
    ]
    alone = [each.label for each in others if each.label not in {*bases, *bases.values()}]
    found = [f"In another precision: {'; '.join(compared)}."] if compared else []
    return found + ([f"Not compared, since they computed in another precision: {_join(alone)}."] if alone else [])


def _first_sentence(results: ResultSet, best: RunGroup, excluded: bool) -> str:
    """excluded: whether every strategy that was compared with the best one is slower with confidence."""
    device = best.ok.iloc[0].device_name or "this machine"
    estimate = best.timed_throughput
    speed = f"{format_with_interval(estimate.value, estimate.low, estimate.high, format_number)} images/s"
    speed += f", n = {plural(estimate.num_runs, 'run')}"
    if all(group.strategy == BASELINE for group in results.groups):
        highest = max(results.timed_groups, key=lambda group: group.timed_throughput.value)
        number = len(results.timed_groups)
        variants = f", in {number} variants, of which {highest.label} has the highest mean" if number > 1 else ""
        return f"On {device}, one process ran alone{variants}. No strategy that divides the work was measured."
    if best.strategy == BASELINE:
        return f"On {device}, no strategy was seen to be faster than {best.label}, one process ({speed})."
    single, among = results.baseline_of(best), f"of those in {compute_precision(best.identity) or 'one precision'}"
    leads = f"On {device}, {best.label} {'is the fastest' if excluded else 'has the highest mean'} {among}"
    if single is None:
        return f"{leads} ({speed})."
    over = results.over_baseline[best.label]
    if over.verdict == "no verdict":
        return f"On {device}, {best.label} ran {over.value:.2f}x as fast as {single.label} ({speed})."
    if over.verdict != "faster":
        return f"{leads}: {_times(over)} {single.label} ({speed}), which it was not seen to be faster than."
    return f"{leads}: {_times(over)} {single.label} ({speed})."


def _times(over: RatioEstimate) -> str:
    return f"{over.value:.2f}x {format_interval(over.low, over.high, '{:.2f}'.format)}".rstrip()


def _describe_power(fraction: float) -> str:
    if fraction > 1:
        return "with 80 % power this data does not find a factor of 2: take more rounds"
    return f"this data finds {100 * fraction:.0f} % with 80 % power"


def _join(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def table_rows(results: ResultSet) -> list[dict]:
    """A row a strategy; every value is text, empty where it was not measured."""
    return [_table_row(results, group) for group in results.groups]


def _table_row(results: ResultSet, group: RunGroup) -> dict:
    ok, estimate, over = group.ok, group.throughput, results.over_baseline.get(group.label)
    row = dict.fromkeys(REPORT_COLUMNS, "") | strategy_cells(results, group)
    if over and (ok.batch_per_device > 0).all():
        row["efficiency"] = scale_with_interval(over.value / ok.world_size.iloc[0], over, "{:.2f}".format)
    if use := device_use(group, results.environment):  # in proportion to images/s, interval and all
        row["TFLOP/s"] = scale_with_interval(use.tflops, estimate, "{:#.3g}".format)
        row["MFU %"] = "" if use.mfu is None else scale_with_interval(100 * use.mfu, estimate, "{:.1f}".format)
    means = {
        "step p50 ms": "step_ms_p50",
        "step p95 ms": "step_ms_p95",
        "J/image": "energy_j_per_image",
    }
    for name, column in means.items():
        row[name] = _mean(ok[column])
    if exposed := exposed_communication(group, results.table("steps")):
        row["exposed comm. ms"] = exposed.text()
    row["val images"] = "/".join(f"{value:,.0f}" for value in sorted(set(ok.val_samples.dropna())))
    row["memory MB"] = _mean(ok.peak_memory_mb)
    row["same update?"] = proof_text(group, results.table("equivalence"))
    return row


def _mean(values: pandas.Series) -> str:
    """The mean over runs with Student's 95 % interval; '' where nothing was measured."""
    values = values[numpy.isfinite(values)]
    if values.empty:
        return ""
    mean, low, high = mean_interval(values.to_numpy(float))
    return format_with_interval(mean, low, high, format_number)


def scale_with_interval(
    value: float, estimate: Estimate | RatioEstimate | EpochTime | None, style: Callable[[float], str]
) -> str:
    """A value that is in proportion to a throughput, a ratio or an epoch, with the interval of that."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return style(value)
    low, high = (value * bound / estimate.value for bound in (estimate.low, estimate.high))
    return format_with_interval(value, low, high, style)


def describe_mfu(results: ResultSet) -> list[tuple[str, str]]:
    """Why the fastest has not the highest MFU, where that is so: a column's name, and what to know of it."""
    uses = [(group.label, use) for group in results.groups if (use := device_use(group, results.environment))]
    return [("MFU of the fastest", why)] if (why := why_lower_mfu(uses)) else []


def wall_tables(results: ResultSet) -> list[ReportTable]:
    """Where the wall clock of a run went, a row for each group with a wall.csv; no table without one.

    Cells are means over n ok runs, in seconds, and half the width of Student's 95 % interval.
    """
    wall = results.table("wall")
    parts = list(dict.fromkeys(wall.part))
    rows = []
    for group in results.groups:
        own = wall[wall.run_id.isin(group.ok.run_id)]
        if own.empty:
            continue
        runs = group.ok[group.ok.run_id.isin(own.run_id)]
        seconds = own.pivot_table(index="run_id", columns="part", values="seconds", aggfunc="sum").reindex(runs.run_id)
        cells = ["" if part not in seconds else _plus_minus(seconds[part].fillna(0.0)) for part in parts]
        named = f"{100 * seconds.sum(axis=1).mean() / runs.wall_s.mean():.1f} %"
        rows.append([group.label, str(len(runs)), *cells, _plus_minus(runs.wall_s), named])
    header = ("strategy", "n", *parts, "wall_s", "named")
    return [ReportTable("Where the wall clock went", WALL_TEXT, header, rows)] if rows else []


def _plus_minus(values: pandas.Series) -> str:
    mean, low, high = mean_interval(values.to_numpy(float))
    return f"{round(mean, 2) + 0.0:.2f}" + ("" if low is None or high is None else f" ± {(high - low) / 2:.2f}")
