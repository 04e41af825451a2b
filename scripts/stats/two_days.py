"""Two recorded sets are two days: B's throughput over A's, where each day has an effect of its own.

    from scripts.stats.two_days import DaySpread, day_spread, ratios_between_days

More repeats do not make it smaller, and two sets cannot show it. It is measured from three or more sets of the same
settings, or given; without it there is a ratio and no verdict. `./bench ab`, both in one session, has no such trouble.
Needs numpy and scipy only.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy

from scripts.stats import critical_values
from scripts.stats.families import Sample, Spread, find_spread
from scripts.stats.intervals import NO_REPEAT, RatioEstimate, ratio_with_verdict, welch_error

MIN_SETS = 3
UNKNOWN_DAY_EFFECT = "the day's effect is unknown"


@dataclasses.dataclass(frozen=True)
class DaySpread:
    """sd of log throughput from day to day, and how many degrees of freedom it was measured with; inf: given."""

    sd: float
    df: float = math.inf


def day_spread(sets: Sequence[Mapping[str, Sample]]) -> DaySpread:
    """Of three or more sets of the same settings, over the strategies that all of them repeat.

    Random effects, by moments: the variance of the sets' means less what the runs' spread explains. All strategies
    share a day, so they do not add degrees of freedom. Raises ValueError for fewer sets or no such strategy.
    """
    names = [name for name in sets[0] if all(name in each and len(each[name].logs) > 1 for each in sets)]
    if len(sets) < MIN_SETS or not names:
        raise ValueError(f"a day-to-day spread needs {MIN_SETS} sets that repeat a strategy of the same settings")
    excess = []
    for name in names:
        runs = [each[name].logs for each in sets]
        explained = numpy.mean([logs.var(ddof=1) / len(logs) for logs in runs])
        excess.append(numpy.var([logs.mean() for logs in runs], ddof=1) - explained)
    return DaySpread(math.sqrt(max(0.0, float(numpy.mean(excess)))), len(sets) - 1)


def ratios_between_days(
    a: Mapping[str, Sample], b: Mapping[str, Sample], day: DaySpread | None
) -> dict[str, RatioEstimate]:
    """Throughput in B over that in A of each strategy in both, with simultaneous 95 % intervals.

    day: None where it is unknown, which allows no verdict.
    """
    names = [name for name in a if name in b]
    repeated = [each[name] for name in names for each in (a, b) if len(each[name].logs) > 1]
    # rounds of two days are no blocks
    spread = find_spread([Sample(each.logs, ()) for each in repeated]) if repeated else None
    return {name: _between(a[name].logs, b[name].logs, day, spread, len(names)) for name in names}


def _between(
    first: numpy.ndarray, second: numpy.ndarray, day: DaySpread | None, spread: Spread | None, num_compared: int
) -> RatioEstimate:
    difference = second.mean() - first.mean()
    if day is None or spread is None or min(len(first), len(second)) < 2:
        why = UNKNOWN_DAY_EFFECT if day is None else NO_REPEAT
        return ratio_with_verdict(difference, 0.0, 1.0, 0.0, why=why)
    if spread.variance is None:
        error, df = welch_error(second, first)
    else:
        error, df = math.sqrt(spread.variance * (1 / len(first) + 1 / len(second))), spread.df
    total = 2 * day.sd**2 + error**2
    # a spread of few days rules; one that is given leaves that of the runs (Satterthwaite 1946)
    df = day.df if math.isfinite(day.df) else df * (total / error**2) ** 2 if error else math.inf
    return ratio_with_verdict(difference, math.sqrt(total), df, critical_values.sidak_critical_value(num_compared, df))
