"""Top-1 accuracy of a group of runs, and how sure it is.

    from scripts.analysis.accuracy import about_top1, top1

Repeats with one seed are one run, bit for bit, and no repeat says how far other images would be off: n is the number
of results that differ. Of one result the interval is Wilson's for the validation images. Of several, as SEEDS=3 gives
them, it holds the spread over seeds as well: s^2 / n + p (1 - p) / N, with Student's t (proportions.over_seeds says
whose). Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

from scripts.analysis.identity import comparable
from scripts.analysis.proportions import differ, differ_over_seeds, over_seeds, wilson
from scripts.analysis.sets import Group
from scripts.analysis.words import count

OUTCOME = ["train_loss", "val_loss", "acc1"]  # bit-identical runs agree in all of them


@dataclasses.dataclass(frozen=True)
class Top1:
    """Percent, the mean of the results that differ; low and high are None where the number of images is unknown or not
    one number."""

    percent: float
    low: float | None
    high: float | None
    num_correct: int
    num_images: int
    fractions: tuple[float, ...]
    """Of each result that differs."""

    @property
    def num_different(self) -> int:
        return len(self.fractions)

    @property
    def text(self) -> str:
        """45.5 [37.2, 54.0]"""
        return f"{self.percent:.1f}" + ("" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]")


def top1(group: Group) -> Top1 | None:
    """Of the ok runs; None where none was evaluated."""
    rows = group.ok[group.ok.acc1.between(0, 100)]
    if rows.empty:
        return None
    different = rows.drop_duplicates(OUTCOME)
    percent, images = float(different.acc1.mean()), set(rows.val_samples)
    fractions = tuple(float(each) / 100 for each in different.acc1)
    num_images = int(images.pop()) if len(images) == 1 and rows.val_samples.gt(0).all() else 0
    if not num_images:
        return Top1(percent, None, None, 0, 0, fractions)
    num_correct = round(percent / 100 * num_images)
    bounds = over_seeds(fractions, num_images) if len(fractions) > 1 else wilson(num_correct, num_images)
    return Top1(percent, 100 * bounds[0], 100 * bounds[1], num_correct, num_images, fractions)


def about_top1(groups: Sequence[Group]) -> str:
    """For below a table: what n and the interval are, and whether the best and the worst differ. '' without any."""
    found = {group: each for group in groups if (each := top1(group)) and each.num_images}
    if not found:
        return ""
    counts = "/".join(str(n) for n in sorted({each.num_different for each in found.values()}))
    text = f"Top-1: n = {counts}, since bit-identical repeats are one; [a, b]: "
    ways = {each.num_different > 1 for each in found.values()}
    told = {
        False: "Wilson's 95 % interval for the images",
        True: "95 % interval for the images and the spread over seeds (s²/n + p(1-p)/N)",
    }
    text += "; of several results ".join(told[way] for way in sorted(ways))
    worst, best = (pick(found, key=lambda group: found[group].percent) for pick in (min, max))
    alike = len({each.num_images for each in found.values()}) == len(ways) == 1
    if alike and found[worst].percent < found[best].percent and comparable(worst.identity, best.identity):
        p, test = _differ(found[best], found[worst])
        num_results = len({each.fractions for each in found.values()})
        num_pairs = num_results * (num_results - 1) // 2  # strategies with one result are one thing
        text += (
            f". {best.label} and {worst.label} are furthest apart, p = {p:.2g} ({test}), "
            f"{min(1.0, p * num_pairs):.2g} as one of {count(num_pairs, 'pair')}; {_batches(groups)}"
        )
    return text + "."


def _differ(first: Top1, second: Top1) -> tuple[float, str]:
    """p-value, and whose test: of one result each, or of several each."""
    if first.num_different > 1:
        return differ_over_seeds(first.fractions, second.fractions, first.num_images), "Welch"
    return differ(*((each.num_correct, each.num_images) for each in (first, second))), "Fisher"


def _batches(groups: Sequence[Group]) -> str:
    """What differs between strategies that do the same: the images that BatchNorm sees at once, where that is known."""
    sizes = {size for group in groups if (size := _images_at_once(group))}
    if len(sizes) < 2:
        return "cut batches give BatchNorm fewer images"
    *larger, smallest = (f"{size:g}" for size in sorted(sizes, reverse=True))
    return f"BatchNorm sees batches of {', '.join(larger)} or {smallest}"


def _images_at_once(group: Group) -> float | None:
    """Images of the part of a batch that passes the model at once; None where its shape was not recorded."""
    told = group.settings
    batch, cuts = told.get("global_batch"), [told.get("num_shards"), told.get("num_microbatches")]
    if not batch or not all(cuts):
        return None
    return batch / (cuts[0] * cuts[1])
