"""Is one result really faster than another? Ratio, 95 % interval, verdict, and what could have been seen.

    python -m scripts.analysis.compare --a results/x [--strategy ddp]
    python -m scripts.analysis.compare --a results/x --b results/y --day-sd 2% [--strategy ddp] [--fail-over 5%]
    python -m scripts.analysis.compare --a results/x --b results/y --day-sets results/u results/v results/w

With one set: its strategies over `single`, and the others over the fastest; or `--strategy` over each other one. With
two: each strategy of B over the same of A. These are two days, which recorded sets cannot tell from what is compared:
there is a verdict only with a day-to-day spread, given or measured from three or more sets of the same settings. The
intervals of a family, such as all over `single`, hold together.

`--fail-over 5%` is for CI: exit 1 where B is slower than A by more than 5 % with confidence, that is where the whole
interval of B/A lies below 0.95, where B lacks a strategy that A has timed, and where one repeat allows no verdict.
Exit code: 0, 1 as above or where no run is ok, 2 for a mistake, for sets that are not alike, and with `--fail-over`
where the day's effect is unknown. Needs no torch.
"""

import dataclasses
import difflib
import sys
from pathlib import Path

import tyro

from benchmarks.common.errors import UserError
from benchmarks.common.settings import SOURCE
from scripts.analysis.days import UNKNOWN, DaySpread, between, day_spread
from scripts.analysis.families import Sample, against, over_fastest
from scripts.analysis.identity import Identity, differing, unlike
from scripts.analysis.recorded import by_columns
from scripts.analysis.sets import BASELINE, Group, ResultSet, load_set, same_hash_other_settings
from scripts.analysis.stats import NO_REPEAT, RatioEstimate
from scripts.analysis.words import interval, show, text_table

# What two sets are often compared for: told of, and no reason to refuse.
TOLD = ("torch", "torchvision", "python", "cuda", "cudnn", "pillow", *SOURCE, "config")
DECIDES = "compare both in one sitting, or tell the day-to-day spread: --day-sd 2%, or --day-sets with three alike"
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
    day_sd: str = ""
    """Such as 2%: standard deviation from day to day of the throughput of equal things, if it is known."""
    day_sets: tuple[Path, ...] = ()
    """Three or more sets of the same settings, of as many days, to measure it from."""
    anyway: bool = False
    """Compare what differs in other things than strategies and software versions, too."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the answer: `of` over `to`."""

    title: str
    of: Group
    to: Group
    estimate: RatioEstimate


def between_sets(
    a: ResultSet, b: ResultSet, strategy: str, anyway: bool, day: DaySpread | None = None
) -> list[Comparison]:
    """Each strategy that both sets timed, B over A. day: None where its spread is unknown, for ratios without verdict.

    Raises UserError where no strategy is in both, or where they are not alike in all but TOLD.
    """
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
    for label in both:
        _refuse_unlike(label, in_a[label], in_b[label], anyway)
    found = between(_samples(in_a), _samples(in_b), day)
    return [Comparison(label, in_b[label], in_a[label], found[label]) for label in both]


def within_set(results: ResultSet, strategy: str, anyway: bool) -> list[Comparison]:
    """The strategies of a set over `single` and over the fastest, or `strategy` over each other one."""
    groups = _timed(results)
    if len(groups) < 2:
        raise UserError(f"{results.path} has one timed strategy only ({', '.join(groups)}); give another set as --b")
    samples = _samples(groups)
    if strategy:
        chosen = _find(strategy, groups, results)
        found = {(chosen, other): over.inverse() for other, over in against(chosen, samples).items()}
    else:
        singles = [label for label, group in groups.items() if group.strategy == BASELINE]
        found = {(of, single): over for single in singles for of, over in against(single, samples).items()}
        fastest, over_it = over_fastest(samples)
        # a pair with the baseline is in its family, and has one interval
        found |= {(of, fastest): over for of, over in over_it.items() if not {of, fastest} & {*singles}}
    for of, to in found:
        one, other = _identities(groups[to], groups[of])
        _refuse(f"{to} and {of}", one, other, unlike(one, other), anyway)
    return [Comparison(f"{of} / {to}", groups[of], groups[to], over) for (of, to), over in found.items()]


def find_day(given: str, paths: tuple[Path, ...], anyway: bool) -> DaySpread | None:
    """The day-to-day spread: given, such as 2%, or of sets of the same settings; None without either.

    Raises UserError for both, or for sets that do not tell it.
    """
    if given and paths:
        raise UserError("--day-sd gives what --day-sets measures: leave one of them out")
    if given:
        return DaySpread(parse_percent(given, "--day-sd"))
    if not paths:
        return None
    days = [_timed(load_set(path)) for path in {path.resolve(): path for path in paths}.values()]
    for groups in days[1:]:
        for label in days[0].keys() & groups.keys():
            _refuse_unlike(f"{label} of --day-sets", days[0][label], groups[label], anyway)
    try:
        return day_spread([_samples(groups) for groups in days])
    except ValueError as error:
        raise UserError(f"--day-sets: {error}") from None


def _samples(groups: dict[str, Group]) -> dict[str, Sample]:
    return {label: group.sample for label, group in groups.items()}


def _refuse_unlike(title: str, first: Group, second: Group, anyway: bool) -> None:
    """Of two sets: raises UserError where they are not alike in all but TOLD, which is printed."""
    one, other = _identities(first, second)
    names = differing([one, other])
    _refuse(title, one, other, [name for name in names if name not in TOLD], anyway)
    told = [name for name in names if name in TOLD]
    told += [name for name in SOURCE if one.met.get(name) != other.met.get(name)]
    if told:
        print(f"note: {title}: A and B differ in {_differences(one, other, told)}", file=sys.stderr)


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
        verdict = f"{estimate.verdict}: {estimate.why}" if estimate.why else estimate.verdict
        runs, windows = f"{of.num_runs} / {to.num_runs}", f"{of.num_windows} / {to.num_windows}"
        bounds = interval(estimate.low, estimate.high, _digits)
        lines.append((each.title, _digits(estimate.value), bounds, verdict, smallest, runs, windows))
    return text_table(lines, left=range(len(COLUMNS)))


def footnotes(comparisons: list[Comparison]) -> list[str]:
    """What the table's numbers mean, and what would allow a verdict where there is none."""
    notes = [
        "smallest difference: found with 80 % power.",
        "95 % interval: all over one strategy, or of B over A, are a family. They hold together: 1 of 20 families of "
        "equal things shows a difference.",
    ]
    if any(each.estimate.paired for each in comparisons):
        notes.append("What a round did to all strategies at once is taken out.")
    whys = {each.estimate.why for each in comparisons}
    if NO_REPEAT in whys:
        notes.append("One repeat allows no verdict: run again with REPEATS=3 or more.")
    if UNKNOWN in whys:
        notes.append(f"{UNKNOWN[0].upper()}{UNKNOWN[1:]}: {DECIDES}.")
    return notes


def _digits(value: float) -> str:
    return f"{value:.3f}" if value >= 0.1 else f"{value:.3g}"


def parse_percent(text: str, option: str) -> float:
    """'5%' as 0.05. Raises UserError for anything that is not a percentage from 0 to 100."""
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not text.endswith("%") or not 0 <= percent < 100:
        raise UserError(f"{option} is {text!r}, but must be a percentage such as 5%")
    return percent / 100


def main(options: Options) -> int:
    limit = parse_percent(options.fail_over, "--fail-over") if options.fail_over else None
    for name in ("fail_over", "day_sd", "day_sets"):
        if getattr(options, name) and options.b is None:
            raise UserError(f"--{name.replace('_', '-')} is for comparing two sets: give the new one as --b")
    day = find_day(options.day_sd, options.day_sets, options.anyway)
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
        comparisons = between_sets(*sets, options.strategy, options.anyway, day)
        print(f"throughput of B, {sets[1].path}, over that of A, {sets[0].path}")
        print(f"day-to-day sd: {'unknown' if day is None else f'{100 * day.sd:.1f} %'}\n")
    print("\n".join([table(comparisons), "", *footnotes(comparisons)]))
    if limit is None:
        return 0
    missing = [label for label in _timed(sets[0]) if label not in _timed(sets[1])] if not options.strategy else []
    return _gate(comparisons, missing, limit)


def _gate(comparisons: list[Comparison], missing: list[str], limit: float) -> int:
    """The exit code of --fail-over; what fails is a line on stderr."""
    unknown = any(each.estimate.why == UNKNOWN for each in comparisons)
    faults = {
        f"slower by more than {100 * limit:g}% with confidence": [
            each.title for each in comparisons if each.estimate.high is not None and each.estimate.high < 1 - limit
        ],
        "not timed in B": missing,
        "no verdict": [each.title for each in comparisons if each.estimate.high is None and not unknown],
    }
    for fault, titles in faults.items():
        if titles:
            print(f"failed: {fault}: {', '.join(titles)}", file=sys.stderr)
    if unknown:
        print(f"error: no verdict: {UNKNOWN}; {DECIDES}", file=sys.stderr)
        return 2
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
