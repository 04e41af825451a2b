"""How sure a throughput is: its interval over runs, and the ratio of two strategies, each comparison by itself.

A run's throughput is its total images over its total seconds, and a strategy's the geometric mean of its runs'.
Intervals are Student's t on the logarithms of the runs' throughputs, which hold the windows' noise already, and for a
ratio on their differences, one a round. Several strategies at once are a family: scripts/results/families.py. Two
sets: scripts/studies/compare.py.
Needs numpy and scipy only.
"""

import dataclasses
from collections.abc import Sequence

import numpy
from scipy.special import nctdtrinc, stdtrit

from scripts.results.formatting import format_with_interval

CONFIDENCE = 0.95
POWER = 0.8
MIN_ROUNDS = 5  # of 3, two speeds raise too many false alarms; 4 do not tell drift from noise
SMALLEST_SD = 1e-9  # a standard deviation of log throughput below this is rounding, not a measured spread

NO_REPEAT = "one run says nothing of the spread between runs"
FEW_ROUNDS = f"fewer than {MIN_ROUNDS} rounds that both ran in say too little of the spread"
NO_SPREAD = "every run has the same throughput, so that nothing says how far another would be off"

Windows = numpy.ndarray
"""float64 [num_windows, 2]: images and seconds of each timed window of one run."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Images/s with its 95 % interval; low and high are None where one sample says nothing of the spread."""

    value: float
    low: float | None
    high: float | None
    num_runs: int
    num_windows: int


@dataclasses.dataclass(frozen=True)
class RatioEstimate:
    """How many times as fast one is as the other, with the 95 % interval and what can be said of it.

    verdict: faster, slower, no difference seen, or no verdict; `why` then says what is missing.
    smallest_difference: the difference, as a fraction, that data like this finds with 80 % power, were this the true
    spread and the rounds surely repeats.
    """

    value: float
    low: float | None
    high: float | None
    verdict: str
    smallest_difference: float | None
    why: str = ""

    @property
    def half_width(self) -> float | None:
        """How far the interval reaches above the ratio, as a fraction of it."""
        return None if self.high is None else self.high / self.value - 1

    def text(self) -> str:
        """1.50 [1.42, 1.58]"""
        return format_with_interval(self.value, self.low, self.high, "{:.2f}".format)

    def inverse(self) -> "RatioEstimate":
        """The same of the second over the first."""
        turned = {"faster": "slower", "slower": "faster"}.get(self.verdict, self.verdict)
        low, high = (None, None) if self.low is None or self.high is None else (1 / self.high, 1 / self.low)
        return dataclasses.replace(self, value=1 / self.value, low=low, high=high, verdict=turned)


def run_interval(windows: Sequence[tuple[float, float]]) -> Estimate:
    """Throughput of one run and its interval over that run's windows, each (images, seconds).

    Windows of one run share its luck and follow one another: the next run may well be outside.
    """
    table = numpy.asarray(windows, dtype=float).reshape(-1, 2)
    images, seconds = table.sum(axis=0)
    low, high = _t_interval(numpy.log(images / seconds), numpy.log(table[:, 0] / table[:, 1]))
    return Estimate(float(images / seconds), low, high, 1, len(table))


def strategy_throughput(runs: Sequence[Windows]) -> Estimate:
    """Throughput of a strategy, the geometric mean of its runs', and its interval over runs."""
    rates = log_throughput(runs)
    low, high = _t_interval(rates.mean(), rates)
    return Estimate(float(numpy.exp(rates.mean())), low, high, len(runs), sum(len(run) for run in runs))


def mean_interval(values: numpy.ndarray) -> tuple[float, float | None, float | None]:
    """Mean of one number a run, [num_runs], and Student's interval over runs; None for both ends with one run."""
    mean = float(numpy.mean(values))
    if len(values) < 2:
        return mean, None, None
    half = _half_width(values)
    return mean, mean - half, mean + half


def geometric_mean(logs: numpy.ndarray) -> tuple[float, float | None, float | None]:
    """The geometric mean of numbers, from their logarithms, and its 95 % interval: Student's on the logarithms; None
    for both ends with one number."""
    mean, low, high = mean_interval(logs)
    if low is None or high is None:
        return float(numpy.exp(mean)), None, None
    return float(numpy.exp(mean)), float(numpy.exp(low)), float(numpy.exp(high))


def log_throughput(runs: Sequence[Windows]) -> numpy.ndarray:
    """float64 [num_runs]: logarithm of each run's total images over its total seconds."""
    totals = numpy.array([run.sum(axis=0) for run in runs])
    return numpy.log(totals[:, 0] / totals[:, 1])


def ratio_of_rounds(
    differences: numpy.ndarray, num_comparisons: int = 1, why: str = "", error_factor: float = 1.0
) -> RatioEstimate:
    """The ratio of two throughputs from float64 [num_rounds], their difference of logarithms in each round.

    num_comparisons: the comparisons whose intervals hold simultaneously. why: what forbids a verdict, if anything does.
    error_factor: how much larger the standard error is than that of independent rounds (scripts/results/independence).
    """
    num_rounds = len(differences)
    if num_rounds < MIN_ROUNDS:
        why = NO_REPEAT if num_rounds < 2 else FEW_ROUNDS
    if why:
        return no_verdict(float(differences.mean()), why)
    error = error_factor * float(differences.std(ddof=1) / numpy.sqrt(num_rounds))
    critical = sidak_critical_value(num_comparisons, num_rounds - 1)
    return ratio_with_verdict(float(differences.mean()), error, num_rounds - 1, critical)


def sidak_critical_value(num_comparisons: int, df: float, level: float = CONFIDENCE) -> float:
    """Half the width, in standard errors, of each of `num_comparisons` simultaneous intervals of Student's t (Sidak
    1967)."""
    return float(stdtrit(df, (1 + level ** (1 / num_comparisons)) / 2))


def no_verdict(difference: float, why: str) -> RatioEstimate:
    """The ratio exp(difference), without an interval, and what is missing."""
    return RatioEstimate(float(numpy.exp(difference)), None, None, "no verdict", None, why)


def ratio_with_verdict(difference: float, error: float, df: float, critical: float) -> RatioEstimate:
    """The ratio exp(difference), its interval of `critical` standard errors of the log, and the verdict.

    A standard error of zero forbids one.
    """
    if error < SMALLEST_SD:
        return no_verdict(difference, NO_SPREAD)
    value = float(numpy.exp(difference))
    with numpy.errstate(over="ignore"):
        factor = numpy.exp(critical * error)
        smallest = numpy.expm1(nctdtrinc(df, 1 - POWER, critical) * error)
    low, high = float(value / factor), float(value * factor)
    verdict = "no difference seen"
    if low > 1:
        verdict = "faster"
    elif high < 1:
        verdict = "slower"
    return RatioEstimate(value, low, high, verdict, float(smallest))


def _t_interval(centre: float, logs: numpy.ndarray) -> tuple[float | None, float | None]:
    """Student's interval around exp(centre) from the spread of `logs`, if they have one."""
    if len(logs) < 2 or logs.std(ddof=1) / numpy.sqrt(len(logs)) < SMALLEST_SD:
        return None, None
    half = _half_width(logs)
    with numpy.errstate(over="ignore"):
        return float(numpy.exp(centre - half)), float(numpy.exp(centre + half))


def _half_width(values: numpy.ndarray) -> float:
    """Half the width of Student's 95 % interval of the mean of two or more values, [num_values]."""
    return float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2) * numpy.std(values, ddof=1) / numpy.sqrt(len(values)))
