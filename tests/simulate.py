"""Result sets of noise, in which all strategies are equally fast: each difference that is found is a false alarm.

Log throughputs are float64 [sets, strategies, rounds], natural logarithms. Strategy 0 is the baseline. Standard
deviations are of runs, 4 % unless a case says otherwise; a round's own effect is as large.
"""

from collections.abc import Callable

import numpy

from scripts.results import stopping_rule
from scripts.results.families import ThroughputSample, ratios_to_baseline, ratios_to_fastest
from scripts.results.intervals import RatioEstimate

RUN_SD = 0.04
FALSE = ("faster", "slower")
Shape = tuple[int, int, int]


def gaussian(rng: numpy.random.Generator, shape: Shape) -> numpy.ndarray:
    """Independent runs, and an effect of each round on all strategies alike."""
    return RUN_SD * (rng.normal(size=shape) + rng.normal(size=(shape[0], 1, shape[2])))


def noisy_baseline(rng: numpy.random.Generator, shape: Shape) -> numpy.ndarray:
    scale = numpy.where(numpy.arange(shape[1]) == 0, 4.0, 1.0)[:, None]
    return gaussian(rng, shape) * scale


def unequal_rounds(rng: numpy.random.Generator, shape: Shape) -> numpy.ndarray:
    """A round hits the baseline with an sd of 14 %, the second strategy with 1.9 %, the others with what is between."""
    loading = numpy.concatenate([[0.14], numpy.geomspace(0.019, 0.12, shape[1] - 1)])
    common = rng.normal(size=(shape[0], 1, shape[2]))
    return loading[:, None] * (0.9 * common + 0.44 * rng.normal(size=shape))


def autoregressive(rng: numpy.random.Generator, shape: tuple[int, ...], correlation: float = 0.5) -> numpy.ndarray:
    """A stationary AR(1) series over the last axis, of variance 1."""
    found = rng.normal(size=shape)
    for place in range(1, shape[-1]):
        found[..., place] = correlation * found[..., place - 1] + (1 - correlation**2) ** 0.5 * found[..., place]
    return found


def wandering(rng: numpy.random.Generator, shape: Shape) -> numpy.ndarray:
    """Each strategy's own noise is AR(0.5) over the rounds, and grows to 3 times: rounds are no repeats then."""
    return RUN_SD * numpy.linspace(1, 3, shape[2]) * autoregressive(rng, shape)


CASES = {"Gaussian": gaussian, "baseline 4x noisier": noisy_baseline, "unequal round effects": unequal_rounds}


def samples_of(logs: numpy.ndarray) -> dict[str, ThroughputSample]:
    """Strategies "0", "1", ... of logs [strategies, rounds], NaN for a run that is missing."""
    found = {}
    for number, row in enumerate(logs):
        kept = numpy.flatnonzero(~numpy.isnan(row))
        found[str(number)] = ThroughputSample(row[kept], kept.astype(float).tolist())
    return found


def holds(estimate: RatioEstimate) -> bool:
    """Whether the interval, if there is one, holds the true ratio, 1."""
    return estimate.low is None or bool(estimate.low <= 1 <= estimate.high)


def family_rates(draw: Callable, num_rounds: int, num_sets: int, num_strategies: int = 6) -> tuple[float, ...]:
    """(false alarms over the baseline, over the fastest, families covered, comparisons without a verdict): fractions"""
    found = []
    for logs in draw(numpy.random.default_rng(5), (num_sets, num_strategies, num_rounds)):
        samples = samples_of(logs)
        over, of_fastest = ratios_to_baseline("0", samples).values(), ratios_to_fastest(samples)[1].values()
        false = [any(each.verdict in FALSE for each in family) for family in (over, of_fastest)]
        found.append([*false, all(map(holds, over)), numpy.mean([each.verdict == "no verdict" for each in over])])
    return tuple(map(float, numpy.mean(found, axis=0)))


def until_stops(width: float, num: int, most: int = 40) -> tuple[float, float]:
    """(fraction of sets whose interval covers when --until has stopped it, rounds on average), of two strategies."""
    covered, used = [], []
    for logs in gaussian(numpy.random.default_rng(2), (num, 2, most)):
        rounds = stopping_rule.FIRST_LOOK_ROUNDS
        while rounds < most and not stopping_rule.precise_enough(samples_of(logs[:, :rounds]), {"1": "0"}, width):
            rounds += 1
        covered.append(holds(ratios_to_baseline("0", samples_of(logs[:, :rounds]))["1"]))
        used.append(rounds)
    return float(numpy.mean(covered)), float(numpy.mean(used))
