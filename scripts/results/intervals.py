"""How sure a speed is, and the ratio of two: Student's t on logarithms of runs, paired by round for ratios.

All ratios of one table are a family: their intervals have one critical value (Sidak 1967), so that any sentence about
them may be read. docs/protocol.md has the method.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

import numpy
from scipy.special import stdtrit

from scripts.results.formatting import format_number, format_with_interval

CONFIDENCE = 0.95  # `grep -rn "95 %" scripts` finds the texts that name it
INTERVAL_ROUNDS = 3  # fewer have no interval
SENTENCE_ROUNDS = 5  # fewer have no sentence that says faster or slower
FIRST_LOOK_ROUNDS = 10  # of --until: earlier, luck stops it too often

Windows = numpy.ndarray
"""float64 [num_windows, 2]: images and seconds of each timed window of one run."""
Pair = tuple[str, str]
LogByRound = Mapping[Hashable, float]
"""The log of images/s of one strategy in each round."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over runs with its 95 % interval, None below INTERVAL_ROUNDS runs."""

    value: float
    low: float | None
    high: float | None
    num_runs: int

    def text(self, style: Callable[[float], str] = format_number) -> str:
        """120 [110, 131]"""
        return format_with_interval(self.value, self.low, self.high, style)


@dataclasses.dataclass(frozen=True)
class RatioEstimate:
    """How many times as fast one is as the other, with its interval, None below INTERVAL_ROUNDS common rounds."""

    value: float
    low: float | None
    high: float | None
    num_rounds: int

    @property
    def verdict(self) -> str:
        """faster, slower, no difference seen, or too few rounds."""
        if self.num_rounds < SENTENCE_ROUNDS or self.low is None or self.high is None:
            return "too few rounds"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference seen"

    def text(self) -> str:
        """1.50 [1.42, 1.58]"""
        return format_with_interval(self.value, self.low, self.high, "{:.2f}".format)

    def inverse(self) -> "RatioEstimate":
        if self.low is None or self.high is None:
            return RatioEstimate(1 / self.value, None, None, self.num_rounds)
        return RatioEstimate(1 / self.value, 1 / self.high, 1 / self.low, self.num_rounds)


def sidak_critical_value(num_comparisons: int, df: float, level: float = CONFIDENCE) -> float:
    """Half the width, in standard errors, of each of so many simultaneous intervals of Student's t."""
    return float(stdtrit(df, (1 + level ** (1 / num_comparisons)) / 2))


def mean_estimate(values: numpy.ndarray, num_comparisons: int = 1) -> Estimate:
    """The mean of [num_runs], and Student's interval."""
    mean, num = float(numpy.mean(values)), len(values)
    if num < INTERVAL_ROUNDS:
        return Estimate(mean, None, None, num)
    half = sidak_critical_value(num_comparisons, num - 1) * float(numpy.std(values, ddof=1)) / num**0.5
    return Estimate(mean, mean - half, mean + half, num)


def geometric_mean(logs: numpy.ndarray, num_comparisons: int = 1) -> Estimate:
    """Of logarithms of [num_runs] values."""
    mean = mean_estimate(logs, num_comparisons)
    low, high = (None if end is None else math.exp(end) for end in (mean.low, mean.high))
    return Estimate(math.exp(mean.value), low, high, mean.num_runs)


def log_throughput(runs: Sequence[Windows]) -> numpy.ndarray:
    """float64 [num_runs]: of images over seconds, of all windows of a run."""
    totals = numpy.array([run.sum(axis=0) for run in runs])
    return numpy.log(totals[:, 0] / totals[:, 1])


def strategy_throughput(runs: Sequence[Windows]) -> Estimate:
    """The geometric mean of its runs', and its interval over runs."""
    return geometric_mean(log_throughput(runs))


def ratio_of_rounds(differences: numpy.ndarray, num_comparisons: int = 1) -> RatioEstimate:
    """Of two throughputs, from float64 [num_rounds], their difference of logarithms in each round."""
    return RatioEstimate(*dataclasses.astuple(geometric_mean(differences, num_comparisons)))


def ratios_of_pairs(logs: Mapping[str, LogByRound], pairs: Collection[Pair]) -> dict[Pair, RatioEstimate]:
    """One family: simultaneous 95 % intervals. A pair without a common round has the ratio of the means, and none.

    logs: by name.
    """
    differences = {
        (of, to): numpy.array([log - logs[to][key] for key, log in logs[of].items() if key in logs[to]])
        for of, to in pairs
    }
    family = sum(len(each) >= INTERVAL_ROUNDS for each in differences.values())
    means = {name: float(numpy.mean([*of_rounds.values()])) for name, of_rounds in logs.items()}
    return {
        (of, to): ratio_of_rounds(each, family)
        if len(each)
        else RatioEstimate(math.exp(means[of] - means[to]), None, None, 0)
        for (of, to), each in differences.items()
    }


def ratios_to_baseline(baseline: str, logs: Mapping[str, LogByRound]) -> dict[str, RatioEstimate]:
    """Each other strategy's throughput over the baseline's, a family of their own."""
    found = ratios_of_pairs(logs, [(of, baseline) for of in logs if of != baseline])
    return {of: ratio for (of, _), ratio in found.items()}


def widest_half_width(ratios: Collection[RatioEstimate]) -> float | None:
    """How far intervals reach above the ratio, as a fraction of it; None where one is missing."""
    widths = [ratio.high / ratio.value - 1 for ratio in ratios if ratio.high is not None]
    return max(widths) if widths and len(widths) == len(ratios) else None


def precise_enough(ratios: Collection[RatioEstimate], width: float) -> bool:
    """The rule of --until: FIRST_LOOK_ROUNDS rounds or more, and every interval as narrow as that."""
    widest = widest_half_width(ratios)
    enough = all(ratio.num_rounds >= FIRST_LOOK_ROUNDS for ratio in ratios)
    return enough and widest is not None and widest <= width
