"""Top-1 accuracy of a group of runs, and how sure it is.

n is the number of recorded seeds. Of one seed the interval is Wilson's for the validation images. Of several it holds
the spread over seeds as well (proportions.interval_over_seeds). Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

import pandas

from benchmarks.common.architectures import architecture_of
from scripts.results.formatting import plural, plural_of_several
from scripts.results.identity import RESOLVED_GLOBAL_BATCH, comparable
from scripts.results.proportions import fisher_p_value, interval_over_seeds, welch_p_value, wilson_interval
from scripts.results.run_group import RunGroup
from scripts.results.settings import seed_of_round

OUTCOME_COLUMNS = ["train_loss", "val_loss", "acc1"]  # each in nine digits
SIGNIFICANCE_LEVEL = 0.05  # p, corrected for all pairs, below which two accuracies are said to differ


@dataclasses.dataclass(frozen=True)
class Top1Accuracy:
    """Percent, the mean over seeds; low and high are None where the number of images is unknown."""

    percent: float
    low: float | None
    high: float | None
    num_correct: int
    num_images: int
    fractions: tuple[float, ...]
    """Of each seed, the mean of its runs."""
    num_runs: int
    outcomes: frozenset[tuple[str, ...]]
    """The different results: each a seed and what OUTCOME_COLUMNS recorded of it."""

    @property
    def identical(self) -> bool:
        """Whether the runs of each seed agree in all of OUTCOME_COLUMNS."""
        return len(self.outcomes) == self.num_seeds

    @property
    def num_seeds(self) -> int:
        return len(self.fractions)

    @property
    def text(self) -> str:
        """45.5 [37.2, 54.0]"""
        return f"{self.percent:.1f}" + ("" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]")


def top1_accuracy(group: RunGroup) -> Top1Accuracy | None:
    """Of the ok runs; None where none was evaluated."""
    rows = group.ok_runs[group.ok_runs.acc1.notna()]
    if rows.empty:
        return None
    seeds = recorded_seeds(group).loc[rows.index]
    fractions = tuple(float(each) / 100 for each in rows.groupby(seeds).acc1.mean())
    percent, images = 100 * sum(fractions) / len(fractions), set(rows.val_samples.dropna())
    runs = len(rows), frozenset(zip(seeds, *(rows[name].astype(str) for name in OUTCOME_COLUMNS), strict=True))
    num_images = int(images.pop()) if len(images) == 1 else 0
    if not num_images:
        return Top1Accuracy(percent, None, None, 0, 0, fractions, *runs)
    num_correct = round(percent / 100 * num_images)
    several = len(fractions) > 1
    low, high = interval_over_seeds(fractions, num_images) if several else wilson_interval(num_correct, num_images)
    return Top1Accuracy(percent, 100 * low, 100 * high, num_correct, num_images, fractions, *runs)


def recorded_seeds(group: RunGroup) -> pandas.Series:
    """The recorded seed of each ok run, as text, by its row."""
    requested = group.identity.requested
    return group.ok_runs["repeat"].fillna(1).map(lambda round_number: str(seed_of_round(requested, int(round_number))))


@dataclasses.dataclass(frozen=True)
class Top1Difference:
    """Of the groups with the best and the worst top-1."""

    best: RunGroup
    worst: RunGroup
    p_value: float
    """Of this pair alone."""
    test: str
    num_pairs: int
    """Of results that differ in a digit of OUTCOME_COLUMNS, or in a seed: strategies with one result are one thing."""

    @property
    def corrected_p_value(self) -> float:
        """Bonferroni's, over all pairs."""
        return min(1.0, self.p_value * self.num_pairs)

    @property
    def is_significant(self) -> bool:
        return self.corrected_p_value < SIGNIFICANCE_LEVEL


def furthest_apart(groups: Sequence[RunGroup]) -> Top1Difference | None:
    """The two groups whose top-1 differs most; None where all are equal, or trained with unequal batches."""
    found = {group: each for group in groups if (each := top1_accuracy(group)) and each.num_images}
    if not found:
        return None
    worst, best = (pick(found, key=lambda group: found[group].percent) for pick in (min, max))
    # with other batches they trained on other numbers of images in as many steps
    kinds = {(each.num_seeds > 1, each.num_images, _global_batch(group)) for group, each in found.items()}
    if len(kinds) > 1 or not comparable(worst.identity, best.identity) or found[worst].percent == found[best].percent:
        return None
    num_results = len({each.outcomes for each in found.values()})
    return Top1Difference(best, worst, *_differ(found[best], found[worst]), num_results * (num_results - 1) // 2)


def describe_top1(groups: Sequence[RunGroup]) -> str:
    """For below a table: what n and the interval are, and whether the best and the worst differ. '' without any."""
    found = {group: each for group in groups if (each := top1_accuracy(group)) and each.num_images}
    if not found:
        return ""
    text = f"Top-1: {_counts([*found.values()])}; [a, b]: "
    ways = {each.num_seeds > 1 for each in found.values()}
    methods = {
        False: "Wilson's 95 % interval for the images",
        True: "95 % interval for the images and the spread over seeds (s²/n + p(1-p)/N)",
    }
    text += "; of several seeds ".join(methods[way] for way in sorted(ways))
    if any(each.num_seeds == 2 for each in found.values()):
        text += "; of two seeds that differ much more than images do, it covers less"
    if difference := furthest_apart(groups):
        best, worst = difference.best.label, difference.worst.label
        text += (
            f". {best} and {worst} are furthest apart, p = {difference.p_value:.2g} ({difference.test}, unpaired "
            f"approximation), {difference.corrected_p_value:.2g} as one of {plural(difference.num_pairs, 'pair')}: "
            + (f"they differ{_batches(groups)}" if difference.is_significant else "no difference seen")
        )
    elif len({_global_batch(group) for group in found}) > 1:
        text += ". Strategies with unequal global batches trained on unequal numbers of images, and are not compared"
    return text + "."


def _counts(found: Sequence[Top1Accuracy]) -> str:
    num_seeds, num_runs = ({each.num_seeds for each in found}, {each.num_runs for each in found})
    text = f"n = {plural_of_several(num_seeds, 'seed')}, {plural_of_several(num_runs, 'run')}"
    if any(each.num_runs > each.num_seeds for each in found):
        text += ", rounds " + ("equal in all recorded digits" if all(each.identical for each in found) else "differ")
    return text


def _differ(first: Top1Accuracy, second: Top1Accuracy) -> tuple[float, str]:
    if first.num_seeds > 1:
        return welch_p_value(first.fractions, second.fractions, first.num_images), "Welch"
    return fisher_p_value(*((each.num_correct, each.num_images) for each in (first, second))), "Fisher"


def _batches(groups: Sequence[RunGroup]) -> str:
    if any(architecture_of(str(group.settings.get("arch"))).normalisation != "BatchNorm" for group in groups):
        return ""
    sizes = {size for group in groups if (size := _images_at_once(group))}
    if len(sizes) < 2:
        return "; that cut batches give BatchNorm fewer images may be why"
    *larger, smallest = (f"{size:g}" for size in sorted(sizes, reverse=True))
    return f"; that BatchNorm sees batches of {', '.join(larger)} or {smallest} may be why"


def _images_at_once(group: RunGroup) -> float | None:
    batch = _global_batch(group)
    num_shards, num_microbatches = (group.settings.get(name) for name in ("num_shards", "num_microbatches"))
    if not batch or not num_shards or not num_microbatches:
        return None
    return float(batch / (num_shards * num_microbatches))


def _global_batch(group: RunGroup) -> int | None:
    return group.settings.get(RESOLVED_GLOBAL_BATCH) or group.settings.get("global_batch")
