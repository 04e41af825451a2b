"""How sure an accuracy is: so many of n validation images right, by one training or by several with seeds of their own.

Runs of one seed say nothing of another: they are one training. With several seeds, n of them, and N images
there are two sources of chance (Bouthillier et al. 2021): the seed, s^2 / n, and the images, p (1 - p) / N, which all
seeds share, so that more seeds do not lessen it. Their sum is too much rather than too little: s holds some of the
images' part. Of two seeds that differ much more than images do the interval covers less than 95 %.
"""

import math
from collections.abc import Sequence

import numpy
from scipy.special import stdtr, stdtrit
from scipy.stats import binomtest, fisher_exact

from scripts.results.intervals import CONFIDENCE


def interval_over_seeds(fractions: Sequence[float], num_images: int) -> tuple[float, float]:
    """95 % interval of the mean of two or more trainings' fractions of the same images.

    Wilson's form, with the number of images that would vary as much as both sources do (Kott, Andersson and Nerman
    2001), and Student's t, whose degrees of freedom are Satterthwaite's (1946): those of the seeds where these matter,
    many where the images do.
    """
    mean = float(numpy.mean(fractions))
    variance, df = _variance(fractions, num_images)
    effective = mean * (1 - mean) / variance if variance else float(num_images)
    limit = float(stdtrit(df, (1 + CONFIDENCE) / 2))
    spread = limit**2 / effective
    half = math.sqrt(spread * (mean * (1 - mean) + spread / 4))
    return max(0.0, (mean + spread / 2 - half) / (1 + spread)), min(1.0, (mean + spread / 2 + half) / (1 + spread))


def welch_p_value(first: Sequence[float], second: Sequence[float], num_images: int) -> float:
    """p-value that the means of two groups of trainings are one, by Welch's t of their variances as in
    interval_over_seeds."""
    (one, df), (other, other_df) = (_variance(fractions, num_images) for fractions in (first, second))
    if not one + other:
        return float(numpy.mean(first) == numpy.mean(second))
    parts = one**2 / df + other**2 / other_df
    joint = (one + other) ** 2 / parts if parts else math.inf  # 0 where the squares of tiny variances underflow
    return float(2 * stdtr(min(joint, 1e9), -abs(numpy.mean(first) - numpy.mean(second)) / math.sqrt(one + other)))


def _variance(fractions: Sequence[float], num_images: int) -> tuple[float, float]:
    """Of the mean over seeds and images, and its degrees of freedom."""
    mean, num = float(numpy.mean(fractions)), len(fractions)
    of_seeds, of_images = float(numpy.var(fractions, ddof=1)) / num, mean * (1 - mean) / num_images
    whole = of_seeds + of_images
    return whole, min(1e9, (num - 1) * (whole / of_seeds) ** 2) if of_seeds else 1e9


def wilson_interval(num_correct: int, num_images: int) -> tuple[float, float]:
    """Wilson's 95 % interval (1927) of a fraction. Raises ValueError unless 0 <= num_correct <= num_images > 0."""
    interval = binomtest(num_correct, num_images).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def fisher_p_value(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact p-value that two fractions, each (num_correct, num_images), are one: chance alone.

    Of different images: where both saw the same, as two models do, it is an approximation.
    """
    table = [[num_correct, num_images - num_correct] for num_correct, num_images in (first, second)]
    return float(fisher_exact(table).pvalue)
