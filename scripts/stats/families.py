"""Several strategies at once: every one against a baseline, or all pairs, with simultaneous 95 % intervals.

    from scripts.stats.families import make_sample, ratios_to_baseline, ratios_to_fastest

Nine comparisons of equal strategies, each with a false alarm in 1 of 20, raise one in up to 1 of 3 sets. Simultaneous
intervals raise one in 1 of 20 sets: with 95 % confidence all intervals of a family cover their ratios. Against a
baseline they are Dunnett's (1955). Of all pairs, so that the fastest may be picked after looking, they are Tukey's and
Kramer's (1953, 1956). Both work on logarithms of the runs' throughputs.

- Rounds are blocks: where every strategy ran once in each round, each of one session, the mean of the round
  is subtracted, from MIN_BLOCK_DF degrees of freedom on (4 strategies and 3 rounds, or 2 and 7), where that costs at
  most a tenth of width.
- The variance is pooled, unless Bartlett's test says at 5 % that strategies differ in it. Then each comparison has its
  own (Welch) and Sidak's correction: wide with 3 rounds, but right. With so few rounds the test sees little: a strategy
  that is 3 times as noisy as the others is pooled in 7 of 10 sets of 3 rounds, and in 1 of 10 of 10 rounds.
- A strategy with one run has no verdict, and does not count in the variance.

`tests/simulate.py` measures coverage and false alarms. Needs numpy and scipy only.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy
from scipy.special import chdtrc

from scripts.stats import critical_values
from scripts.stats.intervals import (
    CONFIDENCE,
    NO_REPEAT,
    SMALLEST_SD,
    RatioEstimate,
    Windows,
    log_throughput,
    ratio_with_verdict,
    welch_error,
)

MIN_BLOCK_DF = 6
BARTLETT_LEVEL = 0.05  # Bartlett's p below which variances are not pooled


@dataclasses.dataclass(frozen=True)
class Sample:
    """The runs of one strategy: logarithm of throughput [num_runs], the round that each was part of, and its session
    (scripts/sets/sessions.py); () where all were of one."""

    logs: numpy.ndarray
    rounds: Sequence[float]
    sessions: Sequence[int] = ()


@dataclasses.dataclass(frozen=True)
class Spread:
    """How far runs of the strategies are spread: one variance of the log for all, or None where each has its own."""

    variance: float | None
    df: int
    blocked: bool

    @property
    def method_text(self) -> str:
        """The method, for below a table."""
        if self.variance is None:
            return "a spread of its own for each strategy, as they differ (Welch, Sidak)"
        return "one spread for all strategies" + (", without what rounds have in common" if self.blocked else "")


def make_sample(runs: Sequence[Windows], rounds: Sequence[float], sessions: Sequence[int] = ()) -> Sample:
    """Windows of each run, the round of each, and its session."""
    return Sample(log_throughput(runs), rounds, sessions)


def ratios_to_baseline(baseline: str, samples: Mapping[str, Sample]) -> dict[str, RatioEstimate]:
    """Each other strategy's throughput over the baseline's, with simultaneous 95 % intervals. Raises KeyError."""
    return ratios_to_own_baselines(samples, {of: baseline for of in samples if of != baseline})


def ratios_to_own_baselines(samples: Mapping[str, Sample], baselines: Mapping[str, str]) -> dict[str, RatioEstimate]:
    """Each strategy's throughput over that of its own baseline, with simultaneous 95 % intervals. Raises KeyError.

    baselines: strategy -> baseline. Of several, each has its share of the 5 %, by the number of its strategies.
    """
    return {of: estimate for (of, _), estimate in _family(samples, [*baselines.items()], _dunnett_limits)}


def ratios_of_all_pairs(samples: Mapping[str, Sample]) -> dict[tuple[str, str], RatioEstimate]:
    """Throughput of the faster of each pair over the slower's, the fastest of all first; simultaneous intervals."""
    by_speed = sorted(samples, key=lambda name: -samples[name].logs.mean())
    return dict(_family(samples, [*itertools.combinations(by_speed, 2)], _tukey_limits))


def ratios_to_fastest(samples: Mapping[str, Sample]) -> tuple[str, dict[str, RatioEstimate]]:
    """The fastest, picked after looking, and each other's throughput over its own, of all pairs' intervals."""
    best = max(samples, key=lambda name: samples[name].logs.mean())
    return best, {slower: found.inverse() for (of, slower), found in ratios_of_all_pairs(samples).items() if of == best}


def find_spread(samples: Sequence[Sample]) -> Spread:
    """The spread of strategies with two runs or more each."""
    counts = [len(each.logs) for each in samples]
    residuals = [each.logs - each.logs.mean() for each in samples]
    block_df = (len(samples) - 1) * (counts[0] - 1)
    blocked = block_df >= MIN_BLOCK_DF and _same_rounds(samples)
    if blocked:
        ordered = numpy.array([row[numpy.argsort(each.rounds)] for row, each in zip(residuals, samples, strict=True)])
        residuals = [*(ordered - ordered.mean(axis=0))]
    # two blocked strategies have one residual, with either sign, which pools nothing
    if not (blocked and len(samples) == 2) and _differ(residuals):
        return Spread(None, 0, False)
    df = block_df if blocked else sum(counts) - len(counts)
    return Spread(float(sum((each**2).sum() for each in residuals) / df), df, blocked)


def _family(
    samples: Mapping[str, Sample], pairs: list[tuple[str, str]], find_limits: Callable
) -> list[tuple[tuple[str, str], RatioEstimate]]:
    """find_limits(samples, pairs, df): the critical values of a pooled variance, by the second of a pair."""
    repeated = {name: each for name, each in samples.items() if len(each.logs) > 1}
    usable = [pair for pair in pairs if repeated.keys() >= set(pair)]
    spread = find_spread([*repeated.values()]) if usable else None
    limits = find_limits(repeated, usable, spread.df) if spread and spread.variance is not None else None
    found = []
    for of, to in pairs:
        first, second = samples[of].logs, samples[to].logs
        difference = first.mean() - second.mean()
        if (of, to) not in usable or spread is None:
            estimate = ratio_with_verdict(difference, 0.0, 1.0, 0.0, why=NO_REPEAT)
        elif limits is None or spread.variance is None:
            error, df = welch_error(first, second)
            estimate = ratio_with_verdict(difference, error, df, critical_values.sidak_critical_value(len(usable), df))
        else:
            error = numpy.sqrt(spread.variance * (1 / len(first) + 1 / len(second)))
            estimate = ratio_with_verdict(difference, error, spread.df, limits[to], spread.blocked)
        found.append(((of, to), estimate))
    return found


def _tukey_limits(samples: Mapping[str, Sample], pairs: list[tuple[str, str]], df: int) -> dict[str, float]:
    return dict.fromkeys((to for _, to in pairs), critical_values.tukey_critical_value(len(samples), df))


def _dunnett_limits(samples: Mapping[str, Sample], pairs: list[tuple[str, str]], df: int) -> dict[str, float]:
    """Dunnett's, at levels whose product is CONFIDENCE: with one estimate of the variance for all, intervals over
    several baselines all cover at least that often (Kimball 1951)."""
    found = {}
    for baseline in dict.fromkeys(to for _, to in pairs):
        runs = tuple(len(samples[of].logs) for of, to in pairs if to == baseline)
        level = CONFIDENCE ** (len(runs) / len(pairs))
        found[baseline] = critical_values.dunnett_critical_value(len(samples[baseline].logs), runs, df, level)
    return found


def _same_rounds(samples: Sequence[Sample]) -> bool:
    """Whether every strategy ran once in each of the same rounds, in the session of the others."""
    runs = [sorted(zip(each.rounds, each.sessions or itertools.repeat(0), strict=False)) for each in samples]
    once = {number for number, _ in runs[0]}
    return all(row == runs[0] for row in runs) and len(once) == len(runs[0]) == len(samples[0].logs)


def _differ(residuals: Sequence[numpy.ndarray]) -> bool:
    """Whether strategies differ in their spread, by Bartlett's test at BARTLETT_LEVEL."""
    if len(residuals) < 2:
        return False
    sums = numpy.array([(each**2).sum() for each in residuals])
    df = numpy.array([len(each) - 1 for each in residuals])
    constant = sums < df * SMALLEST_SD**2
    if constant.any():
        return not constant.all()
    return bartlett_p_value(sums / df, df) < BARTLETT_LEVEL


def bartlett_p_value(variances: numpy.ndarray, df: numpy.ndarray) -> float:
    """Bartlett's p-value (1937) of equal variances: what scipy's takes 3 ms for, which simulations do not have."""
    total = df.sum()
    statistic = total * numpy.log((df * variances).sum() / total) - (df * numpy.log(variances)).sum()
    correction = 1 + ((1 / df).sum() - 1 / total) / (3 * (len(df) - 1))
    return float(chdtrc(len(df) - 1, statistic / correction))
