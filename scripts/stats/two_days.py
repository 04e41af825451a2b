"""Two recorded sets are two days: B's throughput over A's, where each day has an effect of its own.

    from scripts.stats.two_days import DaySpread, day_spread, ratios_between_days

More rounds do not make it smaller, and two sets cannot show it. It is measured from three or more sets of the same
settings, or given; without it there is a ratio and no verdict. Days are taken for independent draws: where a machine
becomes slower from day to day, A and B of days far apart differ. `./bench ab`, both in one session, has no such
trouble. Needs numpy and scipy only.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy

from scripts.stats.families import ThroughputSample, log_table
from scripts.stats.intervals import (
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
UNKNOWN_DAY_EFFECT = "the day's effect is unknown"


@dataclasses.dataclass(frozen=True)
class DaySpread:
    """sd of log throughput from day to day, and how many degrees of freedom it was measured with; inf: given."""

    sd: float
    df: float = math.inf


def day_spread(sets: Sequence[Mapping[str, ThroughputSample]]) -> DaySpread:
    """Of three or more sets of the same settings, over the strategies and rounds that all of them have.

    Random effects, by moments: the variance of the sets' means less what the runs' spread explains. That is what is
    left of the runs without the mean of their set and without what their round has in common in all sets: a machine
    that slows down alike in all sets explains no difference of means. All strategies share a day, so they do not add
    degrees of freedom. Raises ValueError for fewer sets, or no strategy with two rounds in all.
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
    """Logs [num_sets, num_rounds] of one strategy, of the rounds that every set has."""
    table = log_table({str(number): _of_one_session(each) for number, each in enumerate(samples)})
    return table[:, ~numpy.isnan(table).any(axis=0)]


def _of_one_session(sample: ThroughputSample) -> ThroughputSample:
    """Rounds by their numbers alone."""
    return dataclasses.replace(sample, sessions=())


def ratios_between_days(
    a: Mapping[str, ThroughputSample], b: Mapping[str, ThroughputSample], day: DaySpread | None
) -> dict[str, RatioEstimate]:
    """Throughput in B over that in A of each strategy in both, with simultaneous 95 % intervals.

    The days are one comparison, whatever the number of strategies, and have half of the 5 %; the runs, paired by the
    numbers of their rounds, have the other half. Rounds of one number have one order of strategies
    (scripts/runner/round_order.py), so what the place in a round does cancels. A round that one set lacks is left out.
    day: None where it is unknown, which allows no verdict.
    """
    names = [name for name in a if name in b]
    return {name: _between(a[name], b[name], day, len(names)) for name in names}


def _between(a: ThroughputSample, b: ThroughputSample, day: DaySpread | None, num_compared: int) -> RatioEstimate:
    first, second = (_of_one_session(each).by_round() for each in (a, b))  # of one number: their mean
    in_both = sorted(first.keys() & second.keys())
    num_rounds = len(in_both)
    if day is None or num_rounds < MIN_ROUNDS:
        is_single = min(len(first), len(second)) < 2
        why = UNKNOWN_DAY_EFFECT if day is None else NO_REPEAT if is_single else FEW_ROUNDS
        return no_verdict(b.log_throughputs.mean() - a.log_throughputs.mean(), why)
    differences = numpy.array([second[key] - first[key] for key in in_both])
    error = float(differences.std(ddof=1) / math.sqrt(num_rounds))
    level = (1 + CONFIDENCE) / 2
    of_days = sidak_critical_value(1, min(day.df, 1e9), level) * math.sqrt(2) * day.sd
    critical = sidak_critical_value(num_compared, num_rounds - 1, level)
    half = of_days + critical * error
    return ratio_with_verdict(float(differences.mean()), half / critical, num_rounds - 1, critical)
