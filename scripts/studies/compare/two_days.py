"""Two recorded sets are two days: B's throughput over A's, where each day has an effect of its own.

More rounds do not make it smaller, and two sets cannot show it. It is measured from three or more sets of the same
settings, or given; without it there is a ratio and no verdict. Days are assumed independent draws. Needs no torch.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy

from scripts.results.families import ThroughputSample, log_table
from scripts.results.intervals import (
    CONFIDENCE,
    FEW_ROUNDS,
    MIN_ROUNDS,
    NO_REPEAT,
    RatioEstimate,
    no_verdict,
    ratio_with_verdict,
    sidak_critical_value,
)

MIN_SETS = 3
METHOD = "paired by the rounds' numbers, Student's t, Sidak, and the days' part"
LEVEL_OF_EACH = (1 + CONFIDENCE) / 2
"""Of the days' family and of the runs': each has half of the 5 %."""
UNKNOWN_DAY_EFFECT = "the day's effect is unknown"


@dataclasses.dataclass(frozen=True)
class DaySpread:
    """sd of log throughput from day to day, and how many degrees of freedom it was measured with; inf: given."""

    sd: float
    df: float = math.inf

    @property
    def text(self) -> str:
        """2.0 %; an estimate that was cut at 0 is not said to be 0."""
        if self.sd or math.isinf(self.df):
            return f"{100 * self.sd:.1f} %"
        return (
            f"not seen above the spread of the runs (from {self.df + 1:.0f} sets, {self.df:.0f} degrees of freedom; "
            "it may be larger)"
        )


def day_spread(sets: Sequence[Mapping[str, ThroughputSample]]) -> DaySpread:
    """Of three or more sets of the same settings, over the strategies and rounds that all of them have.

    Random effects, by moments: the variance of the sets' means less what the runs' spread explains. All strategies
    share a day, so they add no degrees of freedom. Raises ValueError for fewer sets, or no strategy with two rounds in
    all.
    """
    names = [name for name in sets[0] if all(name in each for each in sets)]
    tables = [_rounds_of_all([each[name] for each in sets]) for name in names]
    if len(sets) < MIN_SETS or not any(table.shape[1] > 1 for table in tables):
        raise ValueError(f"a day-to-day spread needs {MIN_SETS} sets with several rounds of the same settings")
    excess = []
    for table in tables:
        if (num_rounds := table.shape[1]) > 1:
            rest = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
            explained = (rest**2).sum() / ((len(sets) - 1) * (num_rounds - 1)) / num_rounds
            excess.append(table.mean(axis=1).var(ddof=1) - explained)
    return DaySpread(math.sqrt(max(0.0, float(numpy.mean(excess)))), len(sets) - 1)


def _rounds_of_all(samples: Sequence[ThroughputSample]) -> numpy.ndarray:
    """Logs [num_sets, num_rounds] of one strategy, of the rounds that every set has, by their numbers."""
    table = log_table({str(number): dataclasses.replace(each, sessions=()) for number, each in enumerate(samples)})
    return table[:, ~numpy.isnan(table).any(axis=0)]


def ratios_between_days(
    a: Mapping[str, ThroughputSample], b: Mapping[str, ThroughputSample], day: DaySpread | None
) -> dict[str, RatioEstimate]:
    """Throughput in B over that in A of each strategy in both, with simultaneous 95 % intervals.

    The days are one comparison and have half of the 5 %; the runs, paired by the numbers of their rounds, have the
    other half. day: None where it is unknown, which allows no verdict.
    """
    names = [name for name in a if name in b]
    return {name: ratio_between_days(a[name], b[name], day, len(names)) for name in names}


def ratio_between_days(
    a: ThroughputSample, b: ThroughputSample, day: DaySpread | None, num_comparisons: int, num_day_pairs: int = 1
) -> RatioEstimate:
    """Throughput b over a, of a family of `num_comparisons` ratios between the sets of `num_day_pairs` pairs of days.

    Of three sets there are three pairs of days, each a comparison of its own in the days' half of the 5 %.
    """
    differences = _differences(a, b)
    num_rounds = len(differences)
    if day is None or num_rounds < MIN_ROUNDS:
        first, second = a.log_throughputs, b.log_throughputs
        why = NO_REPEAT if min(len(first), len(second)) < 2 else FEW_ROUNDS
        return no_verdict(second.mean() - first.mean(), UNKNOWN_DAY_EFFECT if day is None else why)
    of_days = _days_critical_value(num_day_pairs, day.df) * day.sd
    critical = sidak_critical_value(num_comparisons, num_rounds - 1, LEVEL_OF_EACH)
    half = of_days + critical * _standard_error(differences)
    return ratio_with_verdict(float(differences.mean()), half / critical, num_rounds - 1, critical)


def largest_day_sd(
    a: ThroughputSample, b: ThroughputSample, ratio: float, num_comparisons: int, num_day_pairs: int = 1
) -> float | None:
    """The day-to-day sd, as one that is given, up to which the interval of throughput b over a lies below `ratio`.

    None where it does not even without an effect of the day, and where too few rounds allow no interval. The family is
    that of ratio_between_days.
    """
    differences = _differences(a, b)
    if len(differences) < MIN_ROUNDS:
        return None
    critical = sidak_critical_value(num_comparisons, len(differences) - 1, LEVEL_OF_EACH)
    margin = math.log(ratio) - float(differences.mean()) - critical * _standard_error(differences)
    return margin / _days_critical_value(num_day_pairs, math.inf) if margin > 0 else None


def _differences(a: ThroughputSample, b: ThroughputSample) -> numpy.ndarray:
    """float64 [num_rounds]: log throughput b less a, of each round that both have."""
    first, second = _rounds_of_all([a, b])
    return second - first


def _standard_error(differences: numpy.ndarray) -> float:
    return float(differences.std(ddof=1) / math.sqrt(len(differences)))


def _days_critical_value(num_day_pairs: int, df: float) -> float:
    """Half the width of an interval of two days' difference, in day-to-day standard deviations."""
    return sidak_critical_value(num_day_pairs, min(df, 1e9), LEVEL_OF_EACH) * math.sqrt(2)
