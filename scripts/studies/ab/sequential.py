"""Is B faster than A, measured round by round in one session? When to stop, and what can be said at any time.

Each round gives one logarithm of a ratio: B's throughput over A's. After each block from FIRST_LOOK rounds on the
interval is looked at, and a clear answer ends it. The 5 % of errors are spent bit by bit (Lan and DeMets 1983), in the
proportion (round / most) ** RHO (Kim and DeMets 1987), so that all intervals cover the ratio in 95 of 100 comparisons
(repeated confidence intervals, Jennison and Turnbull 1989), whenever one stops.

Rounds may take after the one before: a standard error is that of n (1 - r) / (1 + r) independent rounds, with their
lag-1 correlation r (Bayley and Hammersley 1946); intervals are as wide as rounds need that are AR(1; 0.5), or
independent, whichever need more; and where r is more than chance explains there is no verdict. Limits come from
NUM_PATHS seeded paths. scripts/results/README.md has the error rates.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy

from scripts.results.intervals import (
    CONFIDENCE,
    FEW_ROUNDS,
    NO_SPREAD,
    SMALLEST_SD,
    RatioEstimate,
    no_verdict,
    ratio_of_rounds,
    ratio_with_verdict,
)

MAX_ROUNDS = 20
FIRST_LOOK = 6
RHO = 3
NUM_PATHS = 50_000
AR_CORRELATION = 0.5
LEVEL = 0.05  # of comparisons whose rounds are independent, so many have no verdict
CORRELATED = (
    f"rounds look correlated with the round before; by chance about {100 * LEVEL:.0f} % of comparisons with "
    "independent rounds do, too, and more where the noise changes"
)


@dataclasses.dataclass(frozen=True)
class SequentialResult:
    """What is known after a round: whether another is needed, and B's throughput over A's so far."""

    more: bool
    estimate: RatioEstimate
    early: bool = False
    """Whether a clear answer ends it before the most rounds. The ratio is then biased outward, away
    from what is excluded, since it ends sooner where chance helps (Jennison and Turnbull 1999, chapter 8)."""
    correlation: float | None = None
    """Of each round's log ratio with the one before."""
    num_rounds: int | None = None
    """The rounds that all of this is of, where more were run."""


@dataclasses.dataclass(frozen=True)
class LookLimits:
    """What a planned look asks. critical: half of its interval, in standard errors. max_correlation: the highest
    that chance explains."""

    critical: float
    max_correlation: float


def look_at_rounds(log_ratios: Sequence[float], most: int = MAX_ROUNDS, limit: float = 0.0) -> SequentialResult:
    """What to do after these rounds: log_ratios, of B's throughput over A's, of all so far.

    most: rounds after which it ends in any case. limit: such as 0.05, where the question is whether B is slower by more
    than 5 %. Raises ValueError for more rounds than `most`.
    """
    logs = numpy.asarray(log_ratios, dtype=float)
    num_rounds = len(logs)
    if num_rounds > most:
        raise ValueError(f"{num_rounds} rounds, and at most {most} were planned")
    mean, more, planned = float(logs.mean()) if num_rounds else 0.0, num_rounds < most, planned_looks(most)
    if num_rounds not in planned:
        why = f"the first look is after {FIRST_LOOK} rounds, then one after every second"
        why += "" if planned else f", and at most {most} were planned"
        return SequentialResult(more, no_verdict(mean, why))
    if logs.std() < SMALLEST_SD:
        return SequentialResult(more, no_verdict(mean, NO_SPREAD))
    limits, correlation = planned[num_rounds], float(lag_1_correlation(logs))
    if correlation > limits.max_correlation:
        return SequentialResult(more, no_verdict(mean, CORRELATED), correlation=correlation)
    error = float(standard_error(logs))
    estimate = ratio_with_verdict(mean, error, num_rounds - 1, limits.critical)
    clear = False
    if estimate.low is not None and estimate.high is not None:
        clear = not estimate.low <= 1 - limit <= estimate.high
    # An early look has far wider limits than the last look of as many planned rounds.
    planned_so = ratio_with_verdict(mean, error, num_rounds - 1, planned_looks(num_rounds)[num_rounds].critical)
    estimate = dataclasses.replace(estimate, smallest_difference=planned_so.smallest_difference)
    return SequentialResult(not clear and more, estimate, clear and more, correlation)


def last_look(log_ratios: Sequence[float], most: int = MAX_ROUNDS, limit: float = 0.0) -> SequentialResult:
    """What was known at the last planned look: a budget may end the rounds after one without a look. Arguments as of
    look_at_rounds."""
    looks = [number for number in planned_looks(most) if number <= len(log_ratios)]
    num_rounds = looks[-1] if looks else len(log_ratios)
    found = look_at_rounds(log_ratios[:num_rounds], most, limit)
    return dataclasses.replace(found, num_rounds=num_rounds) if num_rounds < len(log_ratios) else found


def carry_over(first: str, log_rates: Mapping[str, Sequence[float]]) -> RatioEstimate:
    """Throughput of what ran after B over that of what ran after A, from whole blocks `first` other other `first`.

    log_rates: of A and of B, a number a round. It cancels from B over A; a drift inside the blocks looks the same.
    """
    other = "AB".replace(first, "")
    start, end = (numpy.asarray(log_rates[name], dtype=float) for name in (first, other))
    whole = len(start) // 2 * 2
    # the runs of a block follow: first (of the block before), first, other, other
    after_first, after_other = start[:whole:2] + end[:whole:2], end[1:whole:2] + start[1:whole:2]
    after_b, after_a = (after_other, after_first) if first == "A" else (after_first, after_other)
    return ratio_of_rounds((after_b - after_a) / 2) if whole else no_verdict(0.0, FEW_ROUNDS)


def lag_1_correlation(logs: numpy.ndarray) -> numpy.ndarray:
    """Of each number with the one before, over the last axis [num_rounds]."""
    deviations = logs - logs.mean(axis=-1, keepdims=True)
    return (deviations[..., 1:] * deviations[..., :-1]).sum(axis=-1) / (deviations**2).sum(axis=-1)


def standard_error(logs: numpy.ndarray) -> numpy.ndarray:
    """Of the mean over the last axis [num_rounds], of rounds that may take after the one before.

    The correlation is corrected for its bias in short series, -(1 + 4 r) / n (Kendall 1954), and is 0 to 0.8.
    """
    num_rounds = logs.shape[-1]
    corrected = numpy.clip((num_rounds * lag_1_correlation(logs) + 1) / (num_rounds - 4), 0, 0.8)
    return logs.std(axis=-1, ddof=1) * numpy.sqrt((1 + corrected) / (1 - corrected) / num_rounds)


@functools.cache
def planned_looks(most: int) -> dict[int, LookLimits]:
    """The looks of a comparison of at most so many rounds, by the number of rounds: after blocks, and the last."""
    rounds = [number for number in range(FIRST_LOOK, most + 1) if number % 2 == 0 or number == most]
    independent = numpy.random.default_rng(0).standard_normal((NUM_PATHS, most))
    following = independent.copy()
    for position in range(1, most):
        following[:, position] *= (1 - AR_CORRELATION**2) ** 0.5
        following[:, position] += AR_CORRELATION * following[:, position - 1]
    highest = {
        number: float(numpy.quantile(lag_1_correlation(independent[:, :number]), 1 - LEVEL)) for number in rounds
    }
    limits = [_critical_values(paths, highest) for paths in (independent, following)]
    return {number: LookLimits(max(each[number] for each in limits), highest[number]) for number in rounds}


def _critical_values(paths: numpy.ndarray, highest: dict[int, float]) -> dict[int, float]:
    """Of each look at paths [num_paths, most], so that (round / most) ** RHO of the 5 % are outside by then."""
    num_paths, most = paths.shape
    inside, found = numpy.ones(num_paths, dtype=bool), {}
    for number in highest:
        logs = paths[:, :number]
        statistic = numpy.abs(logs.mean(axis=1)) / standard_error(logs)
        statistic[~inside | (lag_1_correlation(logs) > highest[number])] = 0
        num_new = round((1 - CONFIDENCE) * (number / most) ** RHO * num_paths) - numpy.count_nonzero(~inside)
        found[number] = float(numpy.sort(statistic)[-max(1, num_new)])
        inside &= statistic < found[number]
    return found
