"""What the report says in words and tables: every value is text, taken from the CSV files of one set.

    from scripts.report.content import headline, table_rows

Needs no torch.
"""

import dataclasses
from pathlib import Path

import numpy

from benchmarks.common.results import read_table
from scripts.analysis.compare import ALIKE_WITHIN
from scripts.analysis.device_use import use_of
from scripts.analysis.sets import SETTINGS, Group, ResultSet, matched, show
from scripts.analysis.stats import RatioEstimate, ratio
from scripts.report import charts
from scripts.report.figures import count, digits
from scripts.suite.options import flags_in

NOT_VERIFIED = "not verified: make verify"
UNLIKE_PROOF = {"compression", "amp_dtype", "opt_level", "norm"}  # flags that change the arithmetic proven
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
    ("same update?", "the weights after some steps, compared with one process that runs the shards in turn"),
)


def with_short_labels(results: ResultSet) -> ResultSet:
    """The set, its groups of one strategy told apart by nothing but the settings and flags that differ."""
    groups = []
    for group in results.groups:
        alike = [other for other in results.groups if other.strategy == group.strategy and len(other.ok)]
        if len(alike) > 1 and len(group.ok):
            mine, others = _settings(group), [_settings(other) for other in alike]
            names = dict.fromkeys(name for other in others for name in other)
            differing = [name for name in names if len({other.get(name, "default") for other in others}) > 1]
            text = ", ".join(f"{name} {mine.get(name, 'default')}" for name in differing)
            group = dataclasses.replace(group, label=f"{group.strategy}, {text}")
        groups.append(group)
    return dataclasses.replace(results, groups=groups)


def _settings(group: Group) -> dict[str, str]:
    """What the ok runs of a group were set to, by columns of runs.csv and by flags, which columns repeat."""
    row = group.ok.iloc[0]
    return flags_in(row.options) | {name: show(row[name]) for name in SETTINGS if name != "options"}


def headline(results: ResultSet) -> list[str]:
    """What the set says, in words: the fastest, over single, and which others differ from it."""
    timed = [group for group in results.groups if group.samples]
    if not timed:
        return ["No run has a throughput."]
    settings = [tuple(group.ok[name].iloc[0] for name in ALIKE_WITHIN) for group in timed]
    usual = max(settings, key=settings.count)
    alike = [group for group, setting in zip(timed, settings, strict=True) if setting == usual]
    single = charts.baseline(results)
    best = max(alike, key=lambda group: group.throughput.value)
    sentences = [_first_sentence(results, best, single if single in alike else None)]
    not_different, slower = [], []
    for group in alike:
        if group is best or group is single:
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


def _first_sentence(results: ResultSet, best: Group, single: Group | None) -> str:
    row = best.ok.iloc[0]
    device = row.device_name or "this machine"
    speed = f"{digits(best.throughput.value)} images/s"
    if single is None:
        return f"On {device}, {best.label} is the fastest with {speed}."
    if best is single:
        return f"On {device}, no strategy was seen to be faster than single, one process, with {speed}."
    over = _over(best, single)
    if over.verdict == "no verdict":
        return f"On {device}, {best.label} ran {over.value:.2f}x as fast as single ({speed})."
    if over.verdict != "faster":
        return (
            f"On {device}, no strategy was seen to be faster than single: the fastest, {best.label}, is {_times(over)} "
            f"single ({speed})."
        )
    return f"On {device}, {best.label} is the fastest: {_times(over)} single ({speed})."


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


def table_rows(results: ResultSet, environment: dict, equivalence: dict[str, str]) -> list[dict]:
    """A row a strategy; every value is text, empty where it was not measured."""
    single = charts.baseline(results)
    return [_table_row(group, single, environment, equivalence) for group in results.groups]


def _table_row(group: Group, single: Group | None, environment: dict, equivalence: dict[str, str]) -> dict:
    ok, estimate = group.ok, group.throughput
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
        if single is not None and group is not single:
            over = _over(group, single)
            row["x single"] = f"{over.value:.2f}" + _bounds(over.low, over.high, "{:.2f}".format)
    if use := use_of(group, environment):
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
    row["same update?"] = equivalence.get(group.strategy, NOT_VERIFIED if len(ok) else "")
    if len(ok) and UNLIKE_PROOF & flags_in(ok.options.iloc[0]).keys():
        row["same update?"] = "not verified with these flags"
    return row


def _bounds(low: float | None, high: float | None, style) -> str:
    return "" if low is None else f" [{style(low)}, {style(high)}]"


def _number(value: float) -> str:
    return digits(value) if numpy.isfinite(value) else ""


def read_equivalence(path: Path) -> dict[str, str]:
    """What equivalence.csv says of each strategy, in words; the last row of a strategy counts."""
    return {row.strategy: _equivalence_words(row) for row in read_table(path, "equivalence").itertuples()}


def _equivalence_words(row) -> str:
    if row.verdict == "ok" and row.bit_identical == "yes":
        return "yes: bit-identical"
    compared = f"largest relative difference {row.max_relative_difference:.1e}, tolerance {row.tolerance:.1e}"
    if row.verdict == "ok":
        return f"yes: {compared}"
    if numpy.isfinite(row.max_relative_difference):
        return f"NO: {compared}; {row.reason}"
    if row.verdict == "skipped":
        return "skipped"  # the reason is said once, below the table
    return f"{row.verdict or 'unknown'}: {row.reason}"


def loader_rows(path: Path) -> tuple[str, list[list[str]]]:
    """The verdict on the loader, and rows of what was measured: name, images/s, images/s a core, windows."""
    rows = read_table(path, "loader")
    if rows.empty:
        return "", []
    cells = [
        [row.what, _number(row.images_per_s), _number(row.images_per_s_per_core), f"{row.num_windows:.0f}"]
        for row in rows.itertuples()
    ]
    return rows.verdict.iloc[-1], cells


def wall_rows(results: ResultSet) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the wall clock's account: mean seconds of each part over a strategy's ok runs."""
    wall = read_table(results.path, "wall")
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
