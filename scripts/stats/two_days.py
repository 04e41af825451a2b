"""Two recorded sets are two days: B's throughput over A's, where each day has an effect of its own.

    from scripts.stats.two_days import DaySpread, day_spread, ratios_between_days

More rounds do not make it smaller, and two sets cannot show it. It is measured from three or more sets of the same
settings, or given; without it there is a ratio and no verdict. `./bench ab`, both in one session, has no such trouble.
Needs numpy and scipy only.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy

from scripts.stats.families import ThroughputSample
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
UNKNOWN_DAY_EFFECT = "the day's effect is unknown"


@dataclasses.dataclass(frozen=True)
class DaySpread:
    """sd of log throughput from day to day, and how many degrees of freedom it was measured with; inf: given."""

    sd: float
    df: float = math.inf


def day_spread(sets: Sequence[Mapping[str, ThroughputSample]]) -> DaySpread:
    """Of three or more sets of the same settings, over the strategies that all of them repeat.

    Random effects, by moments: the variance of the sets' means less what the runs' spread explains. All strategies
    share a day, so they do not add degrees of freedom. Raises ValueError for fewer sets or no such strategy.
    """
    names = [name for name in sets[0] if all(name in each and len(each[name].log_throughputs) > 1 for each in sets)]
    if len(sets) < MIN_SETS or not names:
        raise ValueError(f"a day-to-day spread needs {MIN_SETS} sets with several rounds of the same settings")
    excess = []
    for name in names:
        runs = [each[name].log_throughputs for each in sets]
        explained = numpy.mean([logs.var(ddof=1) / len(logs) for logs in runs])
        excess.append(numpy.var([logs.mean() for logs in runs], ddof=1) - explained)
    return DaySpread(math.sqrt(max(0.0, float(numpy.mean(excess)))), len(sets) - 1)


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
    first, second = (dataclasses.replace(each, sessions=()).by_round() for each in (a, b))  # of one number: their mean
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
