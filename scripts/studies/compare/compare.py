"""Is one result really faster than another? Ratio, 95 % interval, verdict, and what could have been seen.

    ./bench compare results/x [--strategy ddp]
    ./bench compare results/x results/y --day-sd 1% [--strategy ddp] [--fail-over 5%]
    ./bench compare results/x results/y --day-sets results/u results/v results/w

With one set: its strategies over `single`, and the others over the fastest; or `--strategy` over each other one. With
two: each strategy of B over the same of A. These are two days: there is a verdict only with a day-to-day spread.

Exit code: 0; 1 with `--fail-over` where B is slower by more with confidence, lacks a strategy or has too few rounds,
or where no run is ok; 2 for a mistake, or for sets that are not alike; 3 with `--fail-over` where that is not decided.
Needs no torch.
"""

import sys
from typing import Any

import tyro

from benchmarks.common.errors import UserError
from scripts.options.set_options import CompareOptions
from scripts.results.families import METHOD
from scripts.results.formatting import format_interval, parse_percent, text_table
from scripts.results.intervals import MIN_ROUNDS, NO_REPEAT
from scripts.results.result_set import ResultSet, load_set
from scripts.shared.programs import exit_code, run_main_and_exit
from scripts.studies.compare.analysis import Comparison, between_sets, find_day_spread, timed_by_label, within_set
from scripts.studies.compare.two_days import METHOD as METHOD_BETWEEN_DAYS
from scripts.studies.compare.two_days import UNKNOWN_DAY_EFFECT, DaySpread

HOW_TO_DECIDE = (
    "compare both in one session by ./bench ab A B, or give the day-to-day spread: --day-sd 2%, or --day-sets with "
    "three sets of the same settings"
)
COMPARISON_COLUMNS = ("comparison", "ratio", "95 % interval", "verdict", "smallest difference", "n runs", "windows")


def comparison_table(comparisons: list[Comparison]) -> str:
    """The comparisons as lines of text."""
    lines = [COMPARISON_COLUMNS]
    for each in comparisons:
        estimate, of, to = each.estimate, each.numerator.timed_throughput, each.denominator.timed_throughput
        smallest = "" if estimate.smallest_difference is None else f"{100 * estimate.smallest_difference:.1f} %"
        verdict = f"{estimate.verdict}: {estimate.why}" if estimate.why else estimate.verdict
        runs, windows = f"{of.num_runs} / {to.num_runs}", f"{of.num_windows} / {to.num_windows}"
        bounds = format_interval(estimate.low, estimate.high, _digits)
        lines.append((each.title, _digits(estimate.value), bounds, verdict, smallest, runs, windows))
    return text_table(lines, left_aligned=range(len(COMPARISON_COLUMNS)))


def footnotes(comparisons: list[Comparison], method: str = METHOD) -> list[str]:
    """What the table's numbers mean, and what would allow a verdict where there is none. method: of the intervals."""
    notes = [
        "smallest difference: how much faster one of the two has to be, to be found with 80 % power (nominal; the "
        "real power may be lower or higher: within one set of five to twenty independent, normal rounds, in which all "
        "strategies have equal noise, 60 to 73 % of new simulated sets find that of a strategy named beforehand; two "
        "sets were not simulated).",
        "95 % interval: all over one strategy, or of B over A, are a family of simultaneous intervals "
        f"({method}): at most about 1 of 20 families of equal things show a difference, where rounds, and of two sets "
        "days, are independent and nearly normal; with skewed noise, or where one strategy or day is slow seldom, "
        "more. Without B and --strategy there are two: over single, and over the highest mean; together at most "
        "about 1 of 10, under the same condition.",
    ]
    whys = {each.estimate.why for each in comparisons}
    if NO_REPEAT in whys:
        notes.append(f"One round allows no verdict: run again with {MIN_ROUNDS} rounds or more.")
    if UNKNOWN_DAY_EFFECT in whys:
        notes.append(f"{UNKNOWN_DAY_EFFECT[0].upper()}{UNKNOWN_DAY_EFFECT[1:]}: {HOW_TO_DECIDE}.")
    return notes


def _digits(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.3g}"


def main(options: CompareOptions, found: dict[str, Any] | None = None) -> int:
    """found: gets the comparisons, for --json."""
    limit, day = read_gate(options)
    if options.b is not None:
        return compare_two(load_set(options.a), load_set(options.b), options, limit, day, found)
    results = load_set(options.a)
    if not _has_timed_runs(results):
        return 1
    comparisons = within_set(results, options.strategy, options.anyway)
    print("\n".join([comparison_table(comparisons), "", *footnotes(comparisons)]))
    if found is not None:
        found |= {"a": str(options.a), "comparisons": [as_fields(each) for each in comparisons]}
    return 0


def as_fields(comparison: Comparison) -> dict[str, Any]:
    """A comparison for --json."""
    estimate = comparison.estimate
    return {
        "comparison": comparison.title,
        "ratio": estimate.value,
        "ratio_low": estimate.low,
        "ratio_high": estimate.high,
        "verdict": estimate.verdict,
        "why": estimate.why,
        "smallest_difference": estimate.smallest_difference,
        "num_runs": [comparison.numerator.timed_throughput.num_runs, comparison.denominator.timed_throughput.num_runs],
    }


def read_gate(options: CompareOptions) -> tuple[float | None, DaySpread | None]:
    """The gate's limit, as a fraction, and the day-to-day spread; None for each that is not given.

    Raises UserError for flags that contradict each other, or that are none.
    """
    limit = parse_percent(options.fail_over, "--fail-over") if options.fail_over else None
    for name in ("fail_over", "day_sd", "day_sets"):
        if getattr(options, name) and options.b is None:
            raise UserError(f"--{name.replace('_', '-')} is for comparing two sets: compare A B")
    compared = [path for path in (options.a, options.b) if path is not None]
    return limit, find_day_spread(options.day_sd, options.day_sets, options.anyway, compared)


def _has_timed_runs(results: ResultSet) -> bool:
    """Whether the set has anything to compare; says so on stderr where it has not."""
    if timed_by_label(results):
        return True
    print(f"error: no ok rows with a throughput in {results.path}/runs.csv", file=sys.stderr)
    return False


def compare_two(
    a: ResultSet,
    b: ResultSet,
    options: CompareOptions,
    limit: float | None,
    day: DaySpread | None,
    found: dict[str, Any] | None = None,
) -> int:
    """Print B over A; returns the exit code. Raises UserError where they are not alike. limit, day: as of read_gate."""
    if not all(_has_timed_runs(results) for results in (a, b)):
        return 1
    comparisons = between_sets(a, b, options.strategy, options.anyway, day)
    print(f"throughput of B, {b.path}, over that of A, {a.path}")
    print(f"day-to-day sd: {'unknown' if day is None else day.text}\n")
    print("\n".join([comparison_table(comparisons), "", *footnotes(comparisons, METHOD_BETWEEN_DAYS)]))
    if found is not None:
        found |= {"a": str(a.path), "b": str(b.path), "day_sd": None if day is None else day.sd}
        found |= {"comparisons": [as_fields(each) for each in comparisons]}
    if limit is None:
        return 0
    missing = [label for label in timed_by_label(a) if label not in timed_by_label(b)] if not options.strategy else []
    return _gate(comparisons, missing, limit)


def _gate(comparisons: list[Comparison], missing: list[str], limit: float) -> int:
    """The exit code of --fail-over; what fails is a line on stderr."""
    estimates = {each.title: each.estimate for each in comparisons}
    ends = {
        name: (each.low, each.high)
        for name, each in estimates.items()
        if each.low is not None and each.high is not None
    }
    unknown = any(each.why == UNKNOWN_DAY_EFFECT for each in estimates.values())
    faults = {
        f"slower by more than {100 * limit:g}% with confidence": [
            name for name, (_, high) in ends.items() if high < 1 - limit
        ],
        "not timed in B": missing,
        "no verdict": [name for name in estimates if name not in ends and not unknown],
    }
    for fault, titles in faults.items():
        if titles:
            print(f"failed: {fault}: {', '.join(titles)}", file=sys.stderr)
    if unknown:
        print(f"not decided: no verdict: {UNKNOWN_DAY_EFFECT}; {HOW_TO_DECIDE}", file=sys.stderr)
        return 3
    if unclear := [name for name, (low, high) in ends.items() if low < 1 - limit <= high]:
        print(
            f"not decided: whether B is slower by more than {100 * limit:g}%: {', '.join(unclear)}; more rounds of "
            "both narrow the runs' part of the interval, and not the days'; "
            f"./bench ab A B --fail-over {100 * limit:g}% has no days",
            file=sys.stderr,
        )
    return 1 if any(faults.values()) else 3 if unclear else 0


def run_command_line(args: list[str] | None = None) -> int:
    """The exit code of these words of a command line, or of this program's own."""
    return exit_code(lambda: main(tyro.cli(CompareOptions, args=args)))


if __name__ == "__main__":
    run_main_and_exit(run_command_line)
