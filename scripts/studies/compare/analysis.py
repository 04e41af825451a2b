"""Which groups of runs may be compared, and their ratios: within one set, and between two, which are two days.

Groups that are not alike are refused, with every field in which they differ. Needs no torch.
"""

import dataclasses
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.results.families import ThroughputSample, ratios_to_baseline, ratios_to_fastest
from scripts.results.formatting import format_setting, parse_percent, printable
from scripts.results.identity import Identity, differing_fields, incomparable_fields, same_work
from scripts.results.intervals import RatioEstimate
from scripts.results.result_set import ResultSet, load_set
from scripts.results.run_group import RunGroup
from scripts.results.settings import SOURCE_FIELDS
from scripts.shared.external import STRATEGY_SOURCE
from scripts.studies.compare.two_days import DaySpread, day_spread, ratios_between_days

# Two sets are often compared for these: a difference is printed, and no reason to refuse.
FIELDS_THAT_MAY_DIFFER = (
    *("torch", "torchvision", "python", "cuda", "cudnn", "pillow", "decoder_version", "config"),
    *("kernel", "gpu_driver", "nccl"),
    *SOURCE_FIELDS,
    STRATEGY_SOURCE,
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One line of the answer: the throughput of `numerator` over that of `denominator`."""

    title: str
    numerator: RunGroup
    denominator: RunGroup
    estimate: RatioEstimate


def between_sets(
    a: ResultSet, b: ResultSet, strategy: str, anyway: bool, day: DaySpread | None = None
) -> list[Comparison]:
    """Each strategy that both sets timed, B over A. day: None where its spread is unknown, for ratios without verdict.

    Raises UserError where no strategy is in both, or where they differ in more than FIELDS_THAT_MAY_DIFFER.
    """
    in_a, in_b = timed_by_label(a), timed_by_label(b)
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
    found = ratios_between_days(_samples(in_a), _samples(in_b), day)
    return [Comparison(label, in_b[label], in_a[label], found[label]) for label in both]


def within_set(results: ResultSet, strategy: str, anyway: bool) -> list[Comparison]:
    """The strategies of a set over `single` and, where they compute in the precision that most do, over the fastest; or
    `strategy` over each other one."""
    groups = timed_by_label(results)
    if len(groups) < 2:
        raise UserError(
            f"{results.path} has one timed strategy only ({', '.join(groups)}); ./bench compare A B has two sets"
        )
    samples = _samples(groups)
    if strategy:
        chosen = _find(strategy, groups, results)
        found = {(chosen, other): over.inverse() for other, over in ratios_to_baseline(chosen, samples).items()}
    else:
        bases = {label: results.baseline_of(group) for label, group in groups.items()}
        singles = {base.label for base in bases.values() if base}
        found = {(of, results.baseline_label_of[of]): over for of, over in results.speedups.items()}
        fastest, over_it = ratios_to_fastest({group.label: group.sample for group in results.rankable_groups})
        # a pair with the baseline is in its family, and has one interval
        found |= {(of, fastest): over for of, over in over_it.items() if not {of, fastest} & singles}
    for of, to in found:
        one, other = groups[to].identity, groups[of].identity
        _refuse(f"{to} and {of}", one, other, [] if same_work(one, other) else incomparable_fields(one, other), anyway)
    return [Comparison(f"{of} / {to}", groups[of], groups[to], over) for (of, to), over in found.items()]


def find_day_spread(
    day_sd: str, paths: tuple[Path, ...], anyway: bool | None, compared: Sequence[Path]
) -> DaySpread | None:
    """The day-to-day spread: day_sd, such as 2%, or measured from sets of the same settings; None without either.

    anyway: whether sets of other settings only get a warning; None: the command has no such option. compared: the sets
    whose ratio it is for. Raises UserError for both, for one of `compared`, whose difference would count as the day's,
    or for sets that do not tell it.
    """
    if day_sd and paths:
        raise UserError("--day-sd gives what --day-sets measures: leave one of them out")
    if day_sd:
        return DaySpread(parse_percent(day_sd, "--day-sd"))
    if not paths:
        return None
    if own := [path for path in paths if path.resolve() in {each.resolve() for each in compared}]:
        raise UserError(
            f"--day-sets: {own[0]} is one of the two that are compared, so that a slowdown would count as the day's; "
            "give three sets of other days"
        )
    days = [timed_by_label(load_set(path)) for path in {path.resolve(): path for path in paths}.values()]
    for groups in days[1:]:
        for label in days[0].keys() & groups.keys():
            _refuse_unlike(f"{label} of --day-sets", days[0][label], groups[label], anyway)
    try:
        return day_spread([_samples(groups) for groups in days])
    except ValueError as error:
        raise UserError(f"--day-sets: {error}") from None


def _samples(groups: dict[str, RunGroup]) -> dict[str, ThroughputSample]:
    return {label: group.sample for label, group in groups.items()}


def _refuse_unlike(title: str, first: RunGroup, second: RunGroup, anyway: bool | None) -> None:
    """Of two sets: raises UserError where they are not alike in all but FIELDS_THAT_MAY_DIFFER; these are printed."""
    one, other = first.identity, second.identity
    names = differing_fields([one, other])
    _refuse(title, one, other, [name for name in names if name not in FIELDS_THAT_MAY_DIFFER], anyway)
    named = [name for name in names if name in FIELDS_THAT_MAY_DIFFER]
    if named:
        print(f"note: {title}: A and B differ in {_differences(one, other, named)}", file=sys.stderr)


def timed_by_label(results: ResultSet) -> dict[str, RunGroup]:
    """The groups that have a throughput, by label. Raises UserError for a set that contradicts itself."""
    results.refuse_contradictions()
    return {group.label: group for group in results.timed_groups}


def _find(name: str, groups: dict[str, RunGroup], results: ResultSet) -> str:
    if name in groups:
        return name
    near = difflib.get_close_matches(name, groups, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {'; '.join(groups)}"
    raise UserError(f"{results.path} has no timed run of {name!r}; {hint}")


def _refuse(title: str, one: Identity, other: Identity, names: list[str], anyway: bool | None) -> None:
    """Raises UserError that names every field in which two groups are not alike, or warns with --anyway."""
    text = f"{title}: not alike in {_differences(one, other, names)}"
    if names and not anyway:
        raise UserError(text if anyway is None else f"{text}. --anyway compares all the same")
    if names:
        print(f"warning: {text}", file=sys.stderr)


def _differences(one: Identity, other: Identity, names: list[str]) -> str:
    values = [
        (name, *(format_setting((each.resolved | each.fields).get(name)) for each in (one, other))) for name in names
    ]
    return printable(", ".join(f"{name} ({a} against {b})" for name, a, b in values))
