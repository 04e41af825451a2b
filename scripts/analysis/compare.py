"""Is one result really faster than another? Ratio, 95 % interval, verdict, and what could have been seen.

    python -m scripts.analysis.compare --a results/x --b results/y [--strategy ddp] [--fail-over 5%] [--anyway]
    python -m scripts.analysis.compare --a results/x [--strategy ddp]

With two sets: each strategy of B over the same of A. With one: its strategies over `single` and over the
fastest, or `--strategy` over each other one. `--fail-over 5%` is for CI: exit 1 where B is slower than A by more
than 5 % with confidence, that is where the whole 95 % interval of B/A lies below 0.95, where B lacks a strategy that
A has timed, and where one repeat allows no verdict. Runs of two sets are
unpaired; within a set, strategies that ran in the same rounds are pairs from 5 rounds on. Exit code: 0, 1 as
above or where no run is ok, 2 for a mistake or for sets that are not alike. Needs no torch.
"""

import dataclasses
import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from scripts.analysis.sets import SETTINGS, Group, ResultSet, load_set, matched, show
from scripts.analysis.stats import RatioEstimate, ratio

ALIKE = (
    "device_name",
    "world_size",
    "nodes",
    "threads_per_rank",
    "global_batch",
    "arch",
    "image_size",
    "precision",
    "loader",
)
ALIKE_WITHIN = ("device_name", "global_batch", "arch", "image_size", "loader")  # ranks and precision: the strategy's
COLUMNS = ("comparison", "ratio", "95 % interval", "verdict", "smallest difference", "n runs", "windows")


@dataclasses.dataclass(frozen=True)
class Options:
    """Is one result really faster than another? Ratio, 95 % interval, verdict, and what could have been seen."""

    a: Path
    """Result set to compare with: the baseline."""
    b: Path | None = None
    """Result set that is compared; without it, the strategies within A are."""
    strategy: str = ""
    """Only this strategy."""
    fail_over: str = ""
    """Such as 5%: exit 1 where the whole interval of B/A says that B is slower by more than this."""
    anyway: bool = False
    """Compare what differs in hardware, ranks, global batch, model, image size, precision or loader too."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the answer: `of` over `to`."""

    title: str
    of: Group
    to: Group
    estimate: RatioEstimate


def between_sets(a: ResultSet, b: ResultSet, strategy: str, anyway: bool) -> list[Comparison]:
    """Each strategy that both sets timed, B over A. Raises UserError where none is, or settings differ."""
    in_a, in_b = _timed(a), _timed(b)
    if strategy:
        in_a, in_b = (
            {(name := _find(strategy, groups, each)): groups[name]} for groups, each in ((in_a, a), (in_b, b))
        )
    both = [label for label in in_a if label in in_b]
    if not both:
        raise UserError(
            f"no strategy was timed in both: {a.path} has {'; '.join(in_a)}, and {b.path} has {'; '.join(in_b)}"
        )
    for results, labels, others in ((a, in_a, in_b), (b, in_b, in_a)):
        if only := [label for label in labels if label not in others]:
            print(f"only in {results.path}: {'; '.join(only)}", file=sys.stderr)
    comparisons = []
    for label in both:
        _check_alike(label, in_a[label], in_b[label], ALIKE, anyway)
        others = _differences(in_a[label], in_b[label], [name for name in (*SETTINGS, "torch") if name not in ALIKE])
        if others:
            print(f"note: {label}: A and B differ in {others}", file=sys.stderr)
        comparisons.append(Comparison(label, in_b[label], in_a[label], ratio(in_b[label].samples, in_a[label].samples)))
    return comparisons


def within_set(results: ResultSet, strategy: str, anyway: bool) -> list[Comparison]:
    """The strategies of a set over `single` and over the fastest, or `strategy` over each other one."""
    groups = _timed(results)
    if len(groups) < 2:
        raise UserError(f"{results.path} has one timed strategy only ({', '.join(groups)}); give another set as --b")
    if strategy:
        chosen = groups[_find(strategy, groups, results)]
        pairs = [(chosen, other) for other in groups.values() if other is not chosen]
    else:
        fastest = max(groups.values(), key=lambda group: group.throughput.value)
        bases = dict.fromkeys([*(group for group in groups.values() if group.strategy == "single"), fastest])
        pairs = [(of, to) for to in bases for of in groups.values() if of is not to]
    comparisons = []
    for of, to in pairs:
        _check_alike(f"{to.label} and {of.label}", to, of, ALIKE_WITHIN, anyway)
        estimate = ratio(of.samples, to.samples, paired=matched(of, to))
        comparisons.append(Comparison(f"{of.label} / {to.label}", of, to, estimate))
    return comparisons


def _timed(results: ResultSet) -> dict[str, Group]:
    return {group.label: group for group in results.groups if group.samples}


def _find(name: str, groups: dict[str, Group], results: ResultSet) -> str:
    if name in groups:
        return name
    near = difflib.get_close_matches(name, groups, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {'; '.join(groups)}"
    raise UserError(f"{results.path} has no timed run of {name!r}; {hint}")


def _check_alike(title: str, first: Group, second: Group, columns: Iterable[str], anyway: bool) -> None:
    """Raises UserError that names every setting in which two groups differ, or warns where that is wanted."""
    differences = _differences(first, second, columns)
    if differences and not anyway:
        raise UserError(f"{title}: not alike in {differences}. --anyway compares all the same")
    if differences:
        print(f"warning: {title}: not alike in {differences}", file=sys.stderr)


def _differences(first: Group, second: Group, columns: Iterable[str]) -> str:
    found = []
    for column in columns:
        values = [" or ".join(dict.fromkeys(map(show, group.ok[column]))) for group in (first, second)]
        if values[0] != values[1]:
            found.append(f"{column} ({values[0]} against {values[1]})")
    return ", ".join(found)


def table(comparisons: list[Comparison]) -> str:
    """The comparisons as lines of text."""
    lines = [COLUMNS]
    for each in comparisons:
        estimate, of, to = each.estimate, each.of.throughput, each.to.throughput
        interval = smallest = ""
        if estimate.low is not None:
            interval = f"[{_digits(estimate.low)}, {_digits(estimate.high)}]"
            smallest = f"{100 * estimate.smallest_difference:.1f} %"
        runs = f"{of.num_runs} / {to.num_runs}" + (" pairs" if estimate.paired else "")
        windows = f"{of.num_windows} / {to.num_windows}"
        lines.append((each.title, _digits(estimate.value), interval, estimate.verdict, smallest, runs, windows))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _digits(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.3g}"


def parse_percent(text: str) -> float:
    """'5%' as 0.05. Raises UserError for anything that is not a percentage from 0 to 100."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent < 100:
        raise UserError(f"--fail-over is {text!r}, but must be a percentage such as 5%")
    return percent / 100


def main(options: Options) -> int:
    limit = parse_percent(options.fail_over) if options.fail_over else None
    if limit is not None and options.b is None:
        raise UserError("--fail-over compares two sets: give the new one as --b")
    sets = [load_set(path) for path in (options.a, options.b) if path is not None]
    for results in sets:
        if not _timed(results):
            print(f"error: no ok rows with a throughput in {results.path}/runs.csv", file=sys.stderr)
            return 1
    if options.b is None:
        comparisons = within_set(sets[0], options.strategy, options.anyway)
    else:
        comparisons = between_sets(*sets, options.strategy, options.anyway)
        print(f"throughput of B, {sets[1].path}, over that of A, {sets[0].path}\n")
    print(table(comparisons))
    print("\nsmallest difference: what this data could have shown. Equal things look different in 1 of 20 comparisons.")
    if any(each.estimate.verdict == "no verdict" for each in comparisons):
        print("no verdict: one repeat says nothing about the spread between runs; run again with REPEATS=3 or more.")
    if limit is None:
        return 0
    missing = [label for label in _timed(sets[0]) if label not in _timed(sets[1])] if not options.strategy else []
    faults = {
        f"slower by more than {options.fail_over} with confidence": [
            each.title for each in comparisons if each.estimate.high is not None and each.estimate.high < 1 - limit
        ],
        f"not timed in {sets[1].path}": missing,
        "no verdict": [each.title for each in comparisons if each.estimate.high is None],
    }
    for fault, titles in faults.items():
        if titles:
            print(f"failed: {fault}: {', '.join(titles)}", file=sys.stderr)
    return int(any(faults.values()))


def command(args: list[str] | None = None) -> int:
    """The command line's exit code; a user's mistake is a line on stderr."""
    try:
        return main(tyro.cli(Options, args=args))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(command())
