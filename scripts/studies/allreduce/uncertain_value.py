"""A number with its 95 % interval, and the Monte Carlo draws that carry the interval through a formula.

Needs no torch.
"""

import dataclasses
import math

import numpy

Number = float | numpy.ndarray
"""A number, or an array with one entry per draw."""

NUM_DRAWS = 400
SIGMAS = 2 * 1.959964  # standard deviations between the two ends of a normal 95 % interval
PERCENTILES = (2.5, 97.5)  # the two ends of a 95 % interval


@dataclasses.dataclass(frozen=True)
class UncertainValue:
    """A number with its 95 % interval. Where nothing is uncertain, both ends equal the number."""

    value: float
    low: float
    high: float

    def draw(self, rng: numpy.random.Generator) -> numpy.ndarray:
        """float64 [1 + NUM_DRAWS]: the number itself, then draws whose 2.5 and 97.5 percentiles are low and high.

        Half of the draws lie below the number. The draws are lognormal with a width of their own on each side. Where
        low is 0 or less, the draws are normal on each side and cut at 0.
        """
        at_interval_end = numpy.concatenate([[0.0], rng.standard_normal(NUM_DRAWS)]) * 2 / SIGMAS  # 1: at an end
        if self.low <= 0:
            distance = numpy.where(at_interval_end < 0, self.value - self.low, self.high - self.value)
            return numpy.maximum(0.0, self.value + at_interval_end * distance)
        log_width = numpy.where(at_interval_end < 0, math.log(self.value / self.low), math.log(self.high / self.value))
        return self.value * numpy.exp(at_interval_end * log_width)


def exact(value: float) -> UncertainValue:
    """A number without uncertainty."""
    return UncertainValue(value, value, value)


def approximate(value: float, relative_error: float) -> UncertainValue:
    """A number from a data sheet or a paper, which may be wrong by `relative_error` in both directions."""
    return UncertainValue(value, value * (1 - relative_error), value * (1 + relative_error))


def summarize_draws(draws: Number) -> UncertainValue:
    """The first of `draws`, [1 + NUM_DRAWS], is the number. The percentiles of the others are its interval."""
    draws = numpy.asarray(draws)
    low, high = numpy.percentile(draws[1:], PERCENTILES)
    return UncertainValue(float(draws[0]), float(low), float(high))
