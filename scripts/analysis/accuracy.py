"""Top-1 accuracy of a group of runs, and how sure it is.

    from scripts.analysis.accuracy import about_top1, top1

Repeats with one seed are one run, bit for bit, and no repeat says how far other images would be off: n is the number
of results that differ, and the interval is that of the validation images. Needs no torch.
"""

import dataclasses
from collections.abc import Sequence

from scripts.analysis.identity import comparable
from scripts.analysis.proportions import differ, wilson
from scripts.analysis.sets import Group
from scripts.analysis.words import count

OUTCOME = ["train_loss", "val_loss", "acc1"]  # bit-identical runs agree in all of them


@dataclasses.dataclass(frozen=True)
class Top1:
    """Percent; low and high are Wilson's interval, None where the number of images is unknown or not one number."""

    percent: float
    low: float | None
    high: float | None
    num_correct: int
    num_images: int
    num_different: int

    @property
    def text(self) -> str:
        """45.5 [37.2, 54.0]"""
        return f"{self.percent:.1f}" + ("" if self.low is None else f" [{self.low:.1f}, {self.high:.1f}]")


def top1(group: Group) -> Top1 | None:
    """Of the ok runs; None where none was evaluated."""
    rows = group.ok[group.ok.acc1.between(0, 100)]
    if rows.empty:
        return None
    num_different = len(rows[OUTCOME].drop_duplicates())
    percent, images = float(rows.acc1.mean()), set(rows.val_samples)
    num_images = int(images.pop()) if len(images) == 1 and rows.val_samples.gt(0).all() else 0
    if not num_images:
        return Top1(percent, None, None, 0, 0, num_different)
    num_correct = round(percent / 100 * num_images)
    low, high = (100 * bound for bound in wilson(num_correct, num_images))
    return Top1(percent, low, high, num_correct, num_images, num_different)


def about_top1(groups: Sequence[Group]) -> str:
    """For below a table: what n and the interval are, and whether the best and the worst differ. '' without any."""
    found = {group: each for group in groups if (each := top1(group)) and each.num_images}
    if not found:
        return ""
    counts = "/".join(str(n) for n in sorted({each.num_different for each in found.values()}))
    text = f"Top-1: n = {counts}, since bit-identical repeats are one; [a, b]: Wilson's 95 % interval for the images"
    worst, best = (pick(found, key=lambda group: found[group].percent) for pick in (min, max))
    if found[worst].percent < found[best].percent and comparable(worst.identity, best.identity):
        p = differ(*((found[group].num_correct, found[group].num_images) for group in (best, worst)))
        num_results = len({(each.num_correct, each.num_images) for each in found.values()})
        num_pairs = num_results * (num_results - 1) // 2  # strategies with one result are one thing
        text += (
            f". {best.label} and {worst.label} are furthest apart, p = {p:.2g} (Fisher), "
            f"{min(1.0, p * num_pairs):.2g} as one of {count(num_pairs, 'pair')}; {_batches(groups)}"
        )
    return text + "."


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
