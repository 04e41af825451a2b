"""Noise as a hostile statistician would choose it: log throughputs of many sets at once, before any method is chosen.

    from generators import CASES, draw
    logs = draw("baseline 4x noisier", rng, num_sets=1000, num_strategies=10, num_rounds=5)

All strategies are equally fast in truth, so that each difference that is found is a false alarm. Strategy 0 is the
baseline. Results are float64 [num_sets, num_strategies, num_rounds], natural logarithms, NaN for a run that is missing.
Standard deviations are of runs, 4 % unless a case says otherwise; a round's own effect is as large.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy

from scripts.runner.round_order import run_order
from scripts.sets.result_set import load_set

PUBLISHED_SET = Path(__file__).parents[1] / "results" / "published" / "cpu2-epyc_torch2.15_202611b"
RUN_SD = 0.04
ROUNDS = (2, 3, 5, 10)
LEFT_BEHIND = 0.08

Draw = Callable[[numpy.random.Generator, int, int, int], numpy.ndarray]
"""draw(rng, num_sets, num_strategies, num_rounds) -> logs [num_sets, num_strategies, num_rounds]."""


def runs(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Independent runs."""
    return RUN_SD * rng.normal(size=(num_sets, num_strategies, num_rounds))


def gaussian(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Independent runs, and an effect of each round on all strategies alike."""
    return runs(rng, num_sets, num_strategies, num_rounds) + RUN_SD * rng.normal(size=(num_sets, 1, num_rounds))


def unequal_rounds(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """A round hits the baseline with an sd of 14 %, the second strategy with 1.9 %, the others with what is between."""
    loading = numpy.concatenate([[0.14], numpy.geomspace(0.019, 0.12, num_strategies - 1)])
    common = rng.normal(size=(num_sets, 1, num_rounds))
    return loading[:, None] * (0.9 * common + 0.44 * rng.normal(size=(num_sets, num_strategies, num_rounds)))


@functools.cache
def published_root() -> numpy.ndarray:
    """[strategies, rounds]: deviations of the published set's runs from their strategy's mean, over the square root of
    the degrees of freedom. Its product with itself is the set's covariance."""
    groups = [group for group in load_set(PUBLISHED_SET).groups if len(group.windows_of_runs) == 5]
    rows = [group.sample.log_throughputs[numpy.argsort(group.round_numbers)] for group in groups]
    deviations = numpy.array([row - row.mean() for row in rows])
    return deviations / numpy.sqrt(deviations.shape[1] - 1)


def published(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Normal, with the covariance that the published set's strategies have over rounds."""
    root = published_root()[:num_strategies]
    return root @ rng.normal(size=(num_sets, root.shape[1], num_rounds))


def noisy_baseline(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """The baseline is 4 times as noisy as the others."""
    return _scaled(rng, num_sets, num_strategies, num_rounds, 0)


def noisy_strategy(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """One strategy is 4 times as noisy as the others."""
    return _scaled(rng, num_sets, num_strategies, num_rounds, min(1, num_strategies - 1))


def _scaled(
    rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int, which: int
) -> numpy.ndarray:
    scale = numpy.where(numpy.arange(num_strategies) == which, 4.0, 1.0)[:, None]
    return gaussian(rng, num_sets, num_strategies, num_rounds) * scale


def autoregressive(rng: numpy.random.Generator, shape: tuple[int, ...], correlation: float = 0.5) -> numpy.ndarray:
    """A stationary AR(1) series over the last axis, of variance 1."""
    found = rng.normal(size=shape)
    for place in range(1, shape[-1]):
        found[..., place] = correlation * found[..., place - 1] + (1 - correlation**2) ** 0.5 * found[..., place]
    return found


def growing_rounds(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """The rounds' effects follow one another, AR(0.5), and all noise grows to 3 times over the set."""
    growth = numpy.linspace(1, 3, num_rounds)
    common = 2 * RUN_SD * autoregressive(rng, (num_sets, 1, num_rounds))
    return growth * (common + runs(rng, num_sets, num_strategies, num_rounds))


def growing_series(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Each strategy's own noise is AR(0.5) over the rounds, and grows to 3 times: rounds are no repeats then."""
    growth = numpy.linspace(1, 3, num_rounds)
    return RUN_SD * growth * autoregressive(rng, (num_sets, num_strategies, num_rounds))


def spikes(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """In half of the rounds half of the runs take longer, by 20 % on average."""
    shape = (num_sets, num_strategies, num_rounds)
    hit = (rng.random((num_sets, 1, num_rounds)) < 0.5) & (rng.random(shape) < 0.5)
    return gaussian(rng, num_sets, num_strategies, num_rounds) / 2 - numpy.log1p(hit * rng.exponential(0.2, shape))


def two_speeds(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """3 of 10 runs are 10 % slower from start to end, as where memory lies badly."""
    slow = rng.random((num_sets, num_strategies, num_rounds)) < 0.3
    return gaussian(rng, num_sets, num_strategies, num_rounds) / 4 - 0.1 * slow


def carry_over(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """What runs after strategy 1, in the order of the suite's rounds, is 8 % slower."""
    logs, before = gaussian(rng, num_sets, num_strategies, num_rounds), -1
    for number in range(num_rounds):
        for strategy in run_order(num_strategies, number + 1):
            logs[:, strategy, number] -= LEFT_BEHIND * (before == 1)
            before = strategy
    return logs


def missing_slow(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Runs slower than by 1.5 sd are missing, as where a limit of time ended them."""
    logs = gaussian(rng, num_sets, num_strategies, num_rounds)
    return numpy.where(logs < -1.5 * numpy.sqrt(2) * RUN_SD, numpy.nan, logs)


def retries(rng: numpy.random.Generator, num_sets: int, num_strategies: int, num_rounds: int) -> numpy.ndarray:
    """Runs slower than by 1.5 sd were run again, at another time: without what the round did to the others."""
    logs = missing_slow(rng, num_sets, num_strategies, num_rounds)
    again = numpy.sqrt(2) * runs(rng, num_sets, num_strategies, num_rounds)
    return numpy.where(numpy.isnan(logs), again, logs)


CASES: dict[str, Draw] = {
    "Gaussian": gaussian,
    "unequal round effects": unequal_rounds,
    "the published set's covariance": published,
    "baseline 4x noisier": noisy_baseline,
    "one strategy 4x noisier": noisy_strategy,
    "AR(0.5) rounds, growing": growing_rounds,
    "AR(0.5) strategies, growing": growing_series,
    "spikes on half of the rounds": spikes,
    "two speeds": two_speeds,
    "carry-over of 8 %": carry_over,
    "slow runs missing": missing_slow,
    "slow runs retried": retries,
}


def draw(
    case: str, rng: numpy.random.Generator, num_sets: int, num_strategies: int = 10, num_rounds: int = 5
) -> numpy.ndarray:
    """Logs of a case, [num_sets, num_strategies, num_rounds]."""
    return CASES[case](rng, num_sets, num_strategies, num_rounds)


# --- two variants, round by round ---------------------------------------------------------------------------------
# Each draws log throughput of A and of B, [num_sets, num_rounds] each, given which of them ran first in each round.

Pair = tuple[numpy.ndarray, numpy.ndarray]


def pair_gaussian(rng: numpy.random.Generator, b_first: numpy.ndarray) -> Pair:
    a, b = RUN_SD * rng.normal(size=(2, *b_first.shape))
    return a, b


def pair_autoregressive(rng: numpy.random.Generator, b_first: numpy.ndarray) -> Pair:
    """The ratio itself is AR(0.5) over the rounds."""
    ratio = numpy.sqrt(2) * RUN_SD * autoregressive(rng, b_first.shape)
    return -ratio / 2, ratio / 2


def pair_carry_over(rng: numpy.random.Generator, b_first: numpy.ndarray) -> Pair:
    """What runs after B is 8 % slower, whichever it is, from round to round, too."""
    a, b = pair_gaussian(rng, b_first)
    a -= LEFT_BEHIND * b_first
    a[:, 1:] -= LEFT_BEHIND * (~b_first[:, 1:] & ~b_first[:, :-1])  # A first, and B last before it
    b[:, 1:] -= LEFT_BEHIND * (b_first[:, 1:] & ~b_first[:, :-1])
    return a, b


PAIRS: dict[str, Callable[[numpy.random.Generator, numpy.ndarray], Pair]] = {
    "Gaussian": pair_gaussian,
    "AR(0.5) ratio": pair_autoregressive,
    "carry-over of 8 %": pair_carry_over,
}
