"""Is one result faster than another? Ratios of the strategies of one set, or of set B over set A.

    ./bench compare results/x [--strategy ddp]
    ./bench compare results/x results/y --fail-over 5%
    ./bench compare results/a100 results/h100 --price a100=8 --price h100=20

Within a set ratios are paired by round; between two, intervals are Welch's, over runs. Exit code: 0; 1 with --fail-over
where B is slower by more with confidence or lacks a strategy, and where no run is ok; 2 for a mistake, or for sets that
are not alike; 3 with --fail-over where that is not decided. Needs no torch.
"""

import dataclasses
import difflib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy

from benchmarks.common.config import IMAGENET_TRAIN_IMAGES
from benchmarks.common.errors import UserError
from scripts.results.formatting import (
    format_number,
    format_setting,
    format_with_interval,
    parse_percent,
    printable,
    text_table,
)
from scripts.results.identity import DERIVED_FIELDS, MACHINE_FIELDS, RESOLVED_SUFFIX, Identity, differing_fields
from scripts.results.intervals import INTERVAL_ROUNDS, RatioEstimate, log_throughput, sidak_critical_value
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.settings import SOURCE_FIELDS
from scripts.shared.external import STRATEGY_SOURCE
from scripts.studies.options import CompareOptions
from scripts.studies.paired import describe_rounds_needed, is_slower

NUM_EPOCHS = 90  # what ImageNet is trained for in the papers
VERSIONS = (
    *("torch", "torchvision", "python", "cuda", "cudnn", "pillow", "decoder_version", "horovod", "apex", "config"),
    *("kernel", "gpu_driver", "nccl", STRATEGY_SOURCE, *SOURCE_FIELDS),
)
MACHINE = (
    *("device", "device_name", "ranks", "nodes", "threads_per_rank", "workers", "shard_ranks"),
    *("cpus_per_task", "gpus_per_node", "partition", *MACHINE_FIELDS, *DERIVED_FIELDS),
)
MAY_DIFFER = {*VERSIONS, *MACHINE} - {"precision", "memory_format"}
"""What sets are often compared for: a difference is printed, and no reason to refuse."""
Found = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line: the throughput of `of` over that of `to`. sd: of a round's log ratio."""

    title: str
    of: RunGroup
    to: RunGroup
    ratio: RatioEstimate
    sd: float


def main(options: CompareOptions, found: Found) -> int:
    """found: gets the comparisons, for --json."""
    limit = parse_percent(options.fail_over, "--fail-over") if options.fail_over else None
    day_sd = parse_percent(options.day_sd, "--day-sd") if options.day_sd else None
    sets = [load_set(path) for path in (options.a, options.b) if path is not None]
    for results in sets:
        if not results.timed_groups:
            print(f"error: no ok rows with a throughput in {results.path}/runs.csv", file=sys.stderr)
            return 1
    if options.b is None:
        if named := [name for name in ("fail_over", "day_sd", "price") if getattr(options, name)]:
            raise UserError(f"--{named[0].replace('_', '-')} is for comparing two sets: compare A B")
        comparisons = within_set(sets[0], options.strategy)
        print_table(comparisons)
        found |= {"a": str(options.a), "comparisons": [as_fields(each) for each in comparisons]}
        return 0
    a, b = sets
    prices = read_prices(options.price, [a.name, b.name])
    comparisons = between_sets(a, b, options.strategy, options.anyway, day_sd or 0.0)
    missing = [label for label in by_label(a) if label not in by_label(b)] if not options.strategy else []
    print(f"throughput of B, {b.path}, over that of A, {a.path}")
    print_table(comparisons)
    if day_sd is None and (days := describe_days(a, b)):
        print(f"warning: {days}", file=sys.stderr)
    found |= {"a": str(a.path), "b": str(b.path), "day_sd": day_sd, "only_in_a": missing}
    found["comparisons"] = [as_fields(each) for each in comparisons]
    if prices:
        found["costs"] = print_costs(comparisons, prices[a.name], prices[b.name])
    return 0 if limit is None else gate(comparisons, missing, limit)


def by_label(results: ResultSet) -> dict[str, RunGroup]:
    return {group.label: group for group in results.timed_groups}


def find_label(name: str, results: ResultSet) -> str:
    labels = by_label(results)
    if name in labels:
        return name
    near = difflib.get_close_matches(name, labels, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {'; '.join(labels)}"
    raise UserError(f"{results.path} has no timed run of {name!r}; {hint}")


# --- within one set -----------------------------------------------------------------------------------------------


def within_set(results: ResultSet, strategy: str) -> list[Comparison]:
    """`strategy` over each other one; without it, each over its own baseline, or over the fastest where there is
    none."""
    groups = by_label(results)
    if strategy:
        chosen = find_label(strategy, results)
        pairs = [(chosen, other) for other in groups if other != chosen]
    else:
        fastest = max(results.rankable_groups, key=lambda group: group.timed_throughput.value).label
        pairs = [*results.baseline_label_of.items()] or [(other, fastest) for other in groups if other != fastest]
    ratios = {(of, to): results.ratio(groups[of], groups[to]) for of, to in pairs}
    found = [
        Comparison(f"{of} / {to}", groups[of], groups[to], ratio, sd_of_rounds(groups[of], groups[to]))
        for (of, to), ratio in ratios.items()
        if ratio is not None
    ]
    if not found:
        have = "; ".join(groups)
        raise UserError(f"{results.path} has no two timed strategies that compare ({have}); compare A B has two sets")
    return found


def sd_of_rounds(of: RunGroup, to: RunGroup) -> float:
    """Of the log ratio of a round that both ran in; 0 with one."""
    mine, other = of.log_by_round, to.log_by_round
    logs = [mine[key] - other[key] for key in mine.keys() & other.keys()]
    return float(numpy.std(logs, ddof=1)) if len(logs) > 1 else 0.0


# --- between two sets ---------------------------------------------------------------------------------------------


def between_sets(a: ResultSet, b: ResultSet, strategy: str, anyway: bool, day_sd: float) -> list[Comparison]:
    """Each strategy that both sets timed, B over A."""
    in_a, in_b = by_label(a), by_label(b)
    if strategy:
        in_a, in_b = ({(name := find_label(strategy, each)): by_label(each)[name]} for each in (a, b))
    both = [label for label in in_a if label in in_b]
    if not both:
        raise UserError(f"no strategy is in both: {a.path} has {'; '.join(in_a)}, and {b.path} has {'; '.join(in_b)}")
    for results, labels, others in ((a, in_a, in_b), (b, in_b, in_a)):
        if only := [label for label in labels if label not in others]:
            print(f"only in {results.path}: {'; '.join(only)}", file=sys.stderr)
    say_differences([(in_a[label].identity, in_b[label].identity) for label in both], both, anyway)
    found = []
    for label in both:
        logs_a, logs_b = (log_throughput(each[label].windows_of_runs) for each in (in_a, in_b))
        sd = math.hypot(*(float(each.std(ddof=1)) if len(each) > 1 else 0.0 for each in (logs_a, logs_b)))
        found.append(Comparison(label, in_b[label], in_a[label], welch(logs_a, logs_b, len(both), day_sd), sd))
    return found


def welch(a: numpy.ndarray, b: numpy.ndarray, num_comparisons: int, day_sd: float) -> RatioEstimate:
    """The ratio B over A of two sets of log throughputs, [num_runs] each, with Welch's interval (Welch 1947).

    day_sd: of log throughput, from day to day, in quadrature, once for each set.
    """
    difference, num_rounds = float(b.mean() - a.mean()), min(len(a), len(b))
    if num_rounds < INTERVAL_ROUNDS:
        return RatioEstimate(math.exp(difference), None, None, num_rounds)
    variances = [float(each.var(ddof=1)) / len(each) for each in (a, b)]
    variance = sum(variances) + 2 * day_sd**2
    spread = sum(each**2 / (len(logs) - 1) for each, logs in zip(variances, (a, b), strict=True))
    df = min(1e9, variance**2 / spread) if spread else 1e9  # the days' part is given, and has no error of its own
    half = sidak_critical_value(num_comparisons, df) * math.sqrt(variance)
    low, high = (math.exp(difference + each) for each in (-half, half))
    return RatioEstimate(math.exp(difference), low, high, num_rounds)


def say_differences(pairs: Sequence[tuple[Identity, Identity]], labels: Sequence[str], anyway: bool) -> None:
    """Print in what the sets differ, each difference once. Raises UserError for one that is not of MAY_DIFFER."""
    unlike: dict[str, str] = {}
    notes: dict[str, None] = {}
    for label, (one, other) in zip(labels, pairs, strict=True):
        for name in differing_fields([one, other]):
            values = (format_setting((each.resolved | each.fields).get(name)) for each in (one, other))
            text = printable(f"{name} ({' against '.join(values)})")
            if name.removesuffix(RESOLVED_SUFFIX) in MAY_DIFFER:
                notes[text] = None
            else:
                unlike.setdefault(text, label)
    if unlike:
        text = f"{next(iter(unlike.values()))}: not alike in {', '.join(unlike)}"
        if not anyway:
            raise UserError(f"{text}. --anyway compares all the same")
        print(f"warning: {text}", file=sys.stderr)
    if notes:
        print(f"note: A and B differ in {', '.join(notes)}", file=sys.stderr)


def describe_days(a: ResultSet, b: ResultSet) -> str:
    """'' for sets of the same day."""
    days = [sorted({str(text)[:10] for text in each.ok_runs.started_at if str(text)[:4].isdigit()}) for each in (a, b)]
    if not all(days) or {*days[0]} & {*days[1]}:
        return ""
    return (
        f"A is of {days[0][0]} and B of {days[1][0]}: a machine's speed changes from day to day, which no interval "
        "here has; --day-sd 2% adds it, ./bench ab compares in one session"
    )


# --- what is printed ----------------------------------------------------------------------------------------------


def print_table(comparisons: Sequence[Comparison]) -> None:
    lines = [("comparison", "ratio [95 %]", "", "runs")]
    for each in comparisons:
        runs = f"{each.of.timed_throughput.num_runs} / {each.to.timed_throughput.num_runs}"
        lines.append((each.title, ratio_text(each.ratio), each.ratio.verdict, runs))
    print(text_table(lines, left_aligned=range(4)))
    if sds := [each.sd for each in comparisons if each.sd]:
        print(describe_rounds_needed(float(numpy.sqrt(numpy.mean(numpy.square(sds)))), len(comparisons)))


def ratio_text(ratio: RatioEstimate) -> str:
    return format_with_interval(ratio.value, ratio.low, ratio.high, "{:.3f}".format)


def as_fields(comparison: Comparison) -> Found:
    ratio, runs = comparison.ratio, [comparison.of.timed_throughput.num_runs, comparison.to.timed_throughput.num_runs]
    ends = {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
    return {"comparison": comparison.title, **ends, "verdict": ratio.verdict, "num_runs": runs}


def gate(comparisons: Sequence[Comparison], missing: Sequence[str], limit: float) -> int:
    """The exit code of --fail-over."""
    slower = {each.title: is_slower(each.ratio, each.ratio.num_rounds, limit) for each in comparisons}
    faults = {
        f"slower by more than {100 * limit:g}% with confidence": [name for name, found in slower.items() if found],
        "not timed in B": missing,
    }
    for fault, names in faults.items():
        if names:
            print(f"failed: {fault}: {', '.join(names)}", file=sys.stderr)
    undecided = [name for name, found in slower.items() if found is None]
    if undecided:
        print(f"not decided: slower by more than {100 * limit:g}%: {', '.join(undecided)}", file=sys.stderr)
    return 1 if any(faults.values()) else 3 if undecided else 0


# --- hours and money ----------------------------------------------------------------------------------------------


def read_prices(words: Sequence[str], names: Sequence[str]) -> dict[str, float]:
    """By the name of a set; {} without words."""
    prices: dict[str, float] = {}
    example = f"--price {names[0]}=2.50"
    for word in words:
        name, equals_sign, number = word.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = math.nan
        if not 0 < price < math.inf:
            raise UserError(f"--price is {word!r}, and {number!r} is no price; for example: {example}")
        if equals_sign and name not in names:
            raise UserError(f"--price names {name!r}, and the sets are {' and '.join(names)}")
        prices |= {name: price} if equals_sign else dict.fromkeys(names, price)
    if words and (missing := [name for name in names if name not in prices]):
        raise UserError(f"{missing[0]} has no price; give that of one machine for one hour: --price {missing[0]}=2.50")
    return prices


def hours_of(group: RunGroup) -> float:
    """Of NUM_EPOCHS of ImageNet, without evaluation and start-up."""
    return NUM_EPOCHS * IMAGENET_TRAIN_IMAGES / group.timed_throughput.value / 3600


def print_costs(comparisons: Sequence[Comparison], price_a: float, price_b: float) -> list[Found]:
    """Returns the lines for --json."""
    rows: list[Found] = []
    lines: list[tuple[str, ...]] = [("", "A: hours", "money", "B: hours", "money", "cost of B / A [95 %]")]
    for each in comparisons:
        row: Found = {"strategy": each.title}
        for name, group, price in (("a", each.to, price_a), ("b", each.of, price_b)):
            nodes = float(group.ok_runs.iloc[0].nodes)
            hours = hours_of(group)
            row |= {f"{name}_hours": hours, f"{name}_money": hours * price * (nodes if nodes > 1 else 1)}
        inverse, factor = each.ratio.inverse(), row["b_money"] / row["a_money"] * each.ratio.value
        low, high = (None if end is None else factor * end for end in (inverse.low, inverse.high))
        cost = dataclasses.replace(inverse, value=factor * inverse.value, low=low, high=high)
        row |= {"ratio": cost.value, "ratio_low": low, "ratio_high": high}
        values = [format_number(row[name]) for name in ("a_hours", "a_money", "b_hours", "b_money")]
        lines.append((each.title, *values, ratio_text(cost)))
        rows.append(row)
    print(f"\n{NUM_EPOCHS} epochs of ImageNet, training alone, at these speeds")
    print(text_table(lines, left_aligned=(0, 5)))
    for name in "ab":
        best = min(rows, key=lambda row: row[f"{name}_money"])
        figures = [format_number(best[f"{name}_{what}"]) for what in ("hours", "money")]
        print(f"{name.upper()} is cheapest with {best['strategy']}: {figures[0]} h, {figures[1]}")
    return rows
