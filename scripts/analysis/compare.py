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
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.settings import SOURCE
from scripts.analysis.identity import Identity, differing, unlike
from scripts.analysis.recorded import by_columns
from scripts.analysis.sets import BASELINE, Group, ResultSet, load_set, matched, same_hash_other_settings
from scripts.analysis.stats import RatioEstimate, ratio
from scripts.analysis.words import interval, show, text_table

# What two sets are often compared for: told of, and no reason to refuse.
TOLD = ("torch", "torchvision", "python", "cuda", "cudnn", "pillow", *SOURCE, "config")
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
    """Compare what differs in other things than strategies and software versions, too."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the answer: `of` over `to`."""

    title: str
    of: Group
    to: Group
    estimate: RatioEstimate


def between_sets(a: ResultSet, b: ResultSet, strategy: str, anyway: bool) -> list[Comparison]:
    """Each strategy that both sets timed, B over A. Raises UserError where none is, or where they are not alike in
    all but TOLD."""
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
        first, second = in_a[label], in_b[label]
        one, other = _identities(first, second)
        names = differing([one, other])
        _refuse(label, one, other, [name for name in names if name not in TOLD], anyway)
        told = [name for name in names if name in TOLD]
        told += [name for name in SOURCE if one.met.get(name) != other.met.get(name)]
        if told:
            print(f"note: {label}: A and B differ in {_differences(one, other, told)}", file=sys.stderr)
        comparisons.append(Comparison(label, second, first, ratio(second.samples, first.samples)))
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
        bases = dict.fromkeys([*(group for group in groups.values() if group.strategy == BASELINE), fastest])
        pairs = [(of, to) for to in bases for of in groups.values() if of is not to]
    comparisons = []
    for of, to in pairs:
        one, other = _identities(to, of)
        _refuse(f"{to.label} and {of.label}", one, other, unlike(one, other), anyway)
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


def _identities(first: Group, second: Group) -> tuple[Identity, Identity]:
    """What each was asked and met; both by the columns of runs.csv where only one of them recorded it."""
    one, other = first.identity, second.identity
    if one.recorded == other.recorded:
        return one, other
    return by_columns(first.ok.iloc[0]), by_columns(second.ok.iloc[0])


def _refuse(title: str, one: Identity, other: Identity, names: list[str], anyway: bool) -> None:
    """Raises UserError that names every field in which two groups are not alike, or warns where that is wanted."""
    text = f"{title}: not alike in {_differences(one, other, names)}"
    if names and not anyway:
        raise UserError(f"{text}. --anyway compares all the same")
    if names:
        print(f"warning: {text}", file=sys.stderr)


def _differences(one: Identity, other: Identity, names: list[str]) -> str:
    values = [(name, *(show((each.met | each.fields).get(name)) for each in (one, other))) for name in names]
    return ", ".join(f"{name} ({a} against {b})" for name, a, b in values)


def table(comparisons: list[Comparison]) -> str:
    """The comparisons as lines of text."""
    lines = [COLUMNS]
    for each in comparisons:
        estimate, of, to = each.estimate, each.of.throughput, each.to.throughput
        smallest = "" if estimate.low is None else f"{100 * estimate.smallest_difference:.1f} %"
        runs = f"{of.num_runs} / {to.num_runs}" + (" pairs" if estimate.paired else "")
        windows = f"{of.num_windows} / {to.num_windows}"
        bounds = interval(estimate.low, estimate.high, _digits)
        lines.append((each.title, _digits(estimate.value), bounds, estimate.verdict, smallest, runs, windows))
    return text_table(lines, left=range(len(COLUMNS)))


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
    for sentence in same_hash_other_settings(sets):
        print(f"warning: {sentence}", file=sys.stderr)
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
