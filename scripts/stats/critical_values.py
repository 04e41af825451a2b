"""Critical values: half-widths, in standard errors, of simultaneous 95 % intervals of a family of comparisons.

    from scripts.stats.critical_values import dunnett_critical_value, tukey_critical_value, sidak_critical_value

They depend only on groups, runs and level, and are computed once a process by scipy (0.1 to 0.4 s each, seeded).
"""

import functools

import numpy
from scipy.optimize import brentq
from scipy.special import stdtrit
from scipy.stats import multivariate_t, studentized_range

from scripts.stats.intervals import CONFIDENCE


@functools.cache
def dunnett_critical_value(baseline_runs: int, runs: tuple[int, ...], df: int, level: float = CONFIDENCE) -> float:
    """Of groups with so many `runs` each, all compared with one baseline, variance pooled (Dunnett 1955)."""
    if len(runs) == 1:
        return float(stdtrit(df, (1 + level) / 2))
    loading = numpy.sqrt([num / (num + baseline_runs) for num in runs])
    shape = numpy.outer(loading, loading)
    numpy.fill_diagonal(shape, 1)

    def excess(limit: float) -> float:
        ends = numpy.full(len(runs), limit)
        rng = numpy.random.default_rng(0)  # the same points for each limit: a smooth function of it
        return multivariate_t(shape=shape, df=df).cdf(ends, lower_limit=-ends, random_state=rng) - level

    alone = stdtrit(df, (1 + level) / 2)
    return float(brentq(excess, alone / 2, sidak_critical_value(len(runs), df, level) * 1.05, xtol=1e-4))


@functools.cache
def tukey_critical_value(num_groups: int, df: int, level: float = CONFIDENCE) -> float:
    """Of all pairs of groups, variance pooled (Tukey 1953; Kramer 1956 for unequal numbers of runs)."""
    return float(studentized_range.ppf(level, num_groups, df) / numpy.sqrt(2))


def sidak_critical_value(num_comparisons: int, df: float, level: float = CONFIDENCE) -> float:
    """Of comparisons with a variance of their own each (Sidak 1967; of all pairs it is Tamhane's T2, 1977)."""
    return float(stdtrit(df, (1 + level ** (1 / num_comparisons)) / 2))
