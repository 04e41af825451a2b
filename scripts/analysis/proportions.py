"""How sure an accuracy is: so many of n validation images right.

    from scripts.analysis.proportions import wilson, differ

Repeats with one seed are one run, bit for bit: n is the number of images, and not that of repeats.
"""

from scipy.stats import binomtest, fisher_exact

from scripts.analysis.stats import CONFIDENCE


def wilson(num_correct: int, num_images: int) -> tuple[float, float]:
    """Wilson's 95 % interval (1927) of a fraction. Raises ValueError unless 0 <= num_correct <= num_images > 0."""
    interval = binomtest(num_correct, num_images).proportion_ci(CONFIDENCE, method="wilson")
    return float(interval.low), float(interval.high)


def differ(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Fisher's exact p-value that two fractions, each (num_correct, num_images), are one: chance alone."""
    table = [[num_correct, num_images - num_correct] for num_correct, num_images in (first, second)]
    return float(fisher_exact(table).pvalue)
