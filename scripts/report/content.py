"""What the report says in words and tables: every value is text, taken from the CSV files of one set.

    from scripts.report.content import headline, table_rows

Needs no torch.
"""

import numpy

from scripts.analysis.device_use import use_of
from scripts.analysis.identity import comparable
from scripts.analysis.proofs import proved
from scripts.analysis.sets import BASELINE, Group, ResultSet, matched
from scripts.analysis.stats import RatioEstimate, ratio
from scripts.analysis.words import count, digits, interval

COLUMNS = (
    "strategy",
    "images/s",
    "n",
    "x single",
    "step p50 ms",
    "step p95 ms",
    "top-1 %",
    "val images",
    "memory MB",
    "TFLOP/s",
    "MFU %",
    "J/image",
    "same update?",
    "status",
)
EXPLAIN = (
    ("images/s", "total images over total seconds of the timed windows, with the 95 % interval over runs and windows"),
    ("x single", "throughput over that of one process, with its 95 % interval"),
    ("step p50, p95", "median and 95th percentile of a step, mean over runs"),
    ("top-1 %, val images", "accuracy after the last epoch, over every validation image exactly once"),
    (
        "memory MB",
        "most that one rank used: allocated by torch on a GPU, else the process's resident memory, 10^6 bytes",
    ),
    ("TFLOP/s, MFU %", "images/s x FLOPs an image (2 a multiply-add), and its share of the peak of all devices"),
    ("J/image", "energy of the run's GPUs, or of the CPU packages, in the timed windows"),
    (
        "same update?",
        "the weights after some steps with these settings, compared with one process that runs the shards in turn",
    ),
)


def headline(results: ResultSet) -> list[str]:
    """What the set says, in words: the fastest, over single, and which others differ from it."""
    timed = [group for group in results.groups if group.samples]
    if not timed:
        return ["No run has a throughput."]
    alike = max(([group for group in timed if comparable(group.identity, of.identity)] for of in timed), key=len)
    best = max(alike, key=lambda group: group.throughput.value)
    sentences = [_first_sentence(results, best)]
    not_different, slower = [], []
    for group in alike:
        if group is best or group is results.baseline_of(best):
            continue
        over = _over(group, best)
        if over.verdict == "no difference seen":
            not_different.append((group, over))
        elif over.verdict in ("slower", "faster"):
            slower.append(f"{group.label} is {_times(over)} {best.label}")
    if not_different:
        names = _and([group.label for group, _ in not_different])
        least = max(over.smallest_difference for _, over in not_different)
        sentences.append(
            f"{names} {'is' if len(not_different) == 1 else 'are'} not different from {best.label} as far as this data "
            f"shows ({_least(least)})."
        )
    sentences += [f"{'; '.join(slower)}."] if slower else []
    if any(len(group.samples) == 1 for group in alike):
        sentences.append(
            "One repeat says nothing about the spread between runs, so these are figures without a verdict."
        )
    if len(alike) < len(timed):
        others = [group.label for group in timed if group not in alike]
        sentences.append(f"Not compared, since they ran on other settings: {_and(others)}.")
    return sentences


def _first_sentence(results: ResultSet, best: Group) -> str:
    device = best.ok.iloc[0].device_name or "this machine"
    speed = f"{digits(best.throughput.value)} images/s"
    if best.strategy == BASELINE:
        return f"On {device}, no strategy was seen to be faster than {best.label}, one process, with {speed}."
    single = results.baseline_of(best)
    if single is None:
        return f"On {device}, {best.label} is the fastest with {speed}."
    over = _over(best, single)
    if over.verdict == "no verdict":
        return f"On {device}, {best.label} ran {over.value:.2f}x as fast as {single.label} ({speed})."
    if over.verdict != "faster":
        return (
            f"On {device}, no strategy was seen to be faster than {single.label}: the fastest, {best.label}, is "
            f"{_times(over)} {single.label} ({speed})."
        )
    return f"On {device}, {best.label} is the fastest: {_times(over)} {single.label} ({speed})."


def _over(of: Group, to: Group) -> RatioEstimate:
    return ratio(of.samples, to.samples, paired=matched(of, to))


def _times(over: RatioEstimate) -> str:
    return f"{over.value:.2f}x [{over.low:.2f}, {over.high:.2f}]"


def _least(fraction: float) -> str:
    if fraction > 1:
        return "which could not have shown even a factor of 2: take more repeats"
    return f"the least it could have shown is {100 * fraction:.0f} %"


def _and(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def table_rows(results: ResultSet) -> list[dict]:
    """A row a strategy; every value is text, empty where it was not measured."""
    return [_table_row(results, group) for group in results.groups]


def _table_row(results: ResultSet, group: Group) -> dict:
    ok, estimate, single = group.ok, group.throughput, results.baseline_of(group)
    row = dict.fromkeys(COLUMNS, "")
    row |= {
        "strategy": group.label,
        "status": ", ".join(f"{n} {name or 'no status'}" for name, n in group.counts.items()),
    }
    if len(ok) and not group.parallel:
        row["status"] += "; not parallel"
    if estimate:
        row["images/s"] = digits(estimate.value) + _bounds(estimate.low, estimate.high, digits)
        row["n"] = f"{count(estimate.num_runs, 'run')} [{count(estimate.num_windows, 'window')}]"
        if single is not None:
            over = _over(group, single)
            row["x single"] = f"{over.value:.2f}" + _bounds(over.low, over.high, "{:.2f}".format)
    if use := use_of(group, results.environment):
        row["TFLOP/s"] = f"{use.tflops:#.3g}"
        row["MFU %"] = "" if use.mfu is None else f"{100 * use.mfu:.1f}"
    means = {
        "step p50 ms": "step_ms_p50",
        "step p95 ms": "step_ms_p95",
        "J/image": "energy_j_per_image",
        "top-1 %": "acc1",
    }
    for name, column in means.items():
        row[name] = _number(ok[column].mean())
    row["val images"] = "/".join(f"{value:,.0f}" for value in sorted(set(ok.val_samples.dropna())))
    row["memory MB"] = _number(ok.peak_memory_mb.max())
    row["same update?"] = proved(group, results.table("equivalence"))
    return row


def _bounds(low: float | None, high: float | None, style) -> str:
    return f" {interval(low, high, style)}".rstrip()


def _number(value: float) -> str:
    return digits(value) if numpy.isfinite(value) else ""


def loader_rows(results: ResultSet) -> tuple[str, list[list[str]]]:
    """The verdict on the loader, and rows of what was measured: name, images/s, images/s a core, windows."""
    rows = results.table("loader")
    if rows.empty:
        return "", []
    cells = [
        [row.what, _number(row.images_per_s), _number(row.images_per_s_per_core), f"{row.num_windows:.0f}"]
        for row in rows.itertuples()
    ]
    return rows.verdict.iloc[-1], cells


def wall_rows(results: ResultSet) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the wall clock's account: mean seconds of each part over a strategy's ok runs."""
    wall = results.table("wall")
    parts = list(dict.fromkeys(wall.part))
    rows = []
    for group in results.groups:
        mine = wall[wall.run_id.isin(group.ok.run_id)]
        if mine.empty:
            continue
        runs = group.ok[group.ok.run_id.isin(mine.run_id)]
        means = mine.groupby("part").seconds.sum() / len(runs)
        total = runs.wall_s.mean()
        cells = ["" if part not in means else f"{round(means[part], 2) + 0.0:.2f}" for part in parts]
        rows.append([group.label, *cells, f"{total:.2f}", f"{100 * means.sum() / total:.1f} %"])
    return ["strategy", *parts, "wall_s", "named"], rows
