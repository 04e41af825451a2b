"""Top-1 accuracy of a group of runs, and how sure it is.

n is the number of recorded seeds: runs of one seed say nothing of another. There are two sources of chance (Bouthillier
et al. 2021): the seed, s^2 / n, and the N validation images, p (1 - p) / N, which all seeds share.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy
from scipy.special import stdtrit

from scripts.results.intervals import CONFIDENCE
from scripts.results.run_group import RunGroup
from scripts.results.settings import seed_of_round

MANY = 1e9  # degrees of freedom: Student's t is normal


@dataclasses.dataclass(frozen=True)
class Top1Accuracy:
    """Percent, the mean over seeds, and its 95 % interval."""

    value: float
    low: float
    high: float
    num_images: int
    num_seeds: int

    @property
    def text(self) -> str:
        """45.5 [37.2, 54.0]"""
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def top1_accuracy(group: RunGroup) -> Top1Accuracy | None:
    """Of the ok runs; None where none was evaluated."""
    rows = group.ok_runs.dropna(subset=["acc1"])
    if rows.empty:
        return None
    seeds = rows["repeat"].fillna(1).map(lambda number: str(seed_of_round(group.identity.requested, int(number))))
    fractions = (rows.acc1.groupby(seeds).mean() / 100).tolist()
    num_images = int(rows.val_samples.iloc[0])
    low, high = interval_over_seeds(fractions, num_images)
    mean = sum(fractions) / len(fractions)
    return Top1Accuracy(100 * mean, 100 * low, 100 * high, num_images, len(fractions))


def interval_over_seeds(fractions: Sequence[float], num_images: int) -> tuple[float, float]:
    """95 % interval of the mean of trainings' fractions of the same images: Wilson's (1927), of one.

    Of several it has the number of images that would vary as much as both sources do (Kott, Andersson and Nerman 2001),
    and Student's t with Satterthwaite's degrees of freedom (1946).
    """
    mean, effective, df = float(numpy.mean(fractions)), float(num_images), MANY
    if len(fractions) > 1:
        of_seeds, of_images = float(numpy.var(fractions, ddof=1)) / len(fractions), mean * (1 - mean) / num_images
        whole = of_seeds + of_images
        effective = mean * (1 - mean) / whole if whole else effective
        df = min(MANY, (len(fractions) - 1) * (whole / of_seeds) ** 2) if of_seeds else MANY
    spread = float(stdtrit(df, (1 + CONFIDENCE) / 2)) ** 2 / effective
    half = math.sqrt(spread * (mean * (1 - mean) + spread / 4))
    return max(0.0, (mean + spread / 2 - half) / (1 + spread)), min(1.0, (mean + spread / 2 + half) / (1 + spread))
