"""A second auditor's noise, in the frame of hostile_generators.py.

    from hostile_generators_2 import CASES, draw
    logs = draw("two modes", rng, num_sets=1000, num_strategies=9, num_rounds=5)

Written before he read the method (commit 5568a9a7, one set at a time), and drawn here many sets at once. All strategies
are equally fast in truth: in the mean of their logarithms over many sessions. A run's own sd is 1 %, and a round slows
all of its runs alike, with an sd of 2 %, unless a case says otherwise.
"""

from collections.abc import Callable

import numpy
from generators import autoregressive
from hostile_generators import Array, Pair, Shape, pair_of
from numpy.random import Generator

from scripts.runner.round_order import run_order

RUN_SD = 0.01
Places = Callable[[Generator, Shape], Array]
"""The place (0 is first) of each strategy in each round, int [num_sets, num_strategies, num_rounds]."""


# --- pieces ---------------------------------------------------------------------------------------------------------


def runs(rng: Generator, shape: Shape, scale: float = 1.0) -> Array:
    """Independent normal runs of `scale` times the sd, in rounds that slow all alike."""
    return 2 * RUN_SD * rng.normal(size=(shape[0], 1, shape[2])) + scale * RUN_SD * rng.normal(size=shape)


def random_places(rng: Generator, shape: Shape) -> Array:
    """Each round has a random order of its own."""
    return rng.random(shape).argsort(axis=1)


def suite_places(rng: Generator, shape: Shape) -> Array:
    """The orders of the suite."""
    orders = [numpy.argsort(run_order(shape[1], number + 1)) for number in range(shape[2])]
    return numpy.broadcast_to(numpy.transpose(orders), shape)


def drawn_strategy(rng: Generator, shape: Shape, first: int = 1) -> Array:
    """A strategy of each set, but none before `first`; bool [num_sets, num_strategies, 1]."""
    return numpy.arange(shape[1])[:, None] == rng.integers(first, shape[1], size=(shape[0], 1, 1))


# --- what a place in the round does ---------------------------------------------------------------------------------


def drift_in_rounds(places: Places) -> Callable[[Generator, Shape], Array]:
    """The machine warms up in each round: its last run is 6 % slower than its first."""

    def drawn(rng: Generator, shape: Shape) -> Array:
        return runs(rng, shape, 0.3) - 0.06 * places(rng, shape) / (shape[1] - 1)

    return drawn


def rotated_places(rng: Generator, shape: Shape) -> Array:
    """The order only rotates from round to round: unfair until each place was used once."""
    start = numpy.arange(shape[2]) + rng.integers(shape[1], size=(shape[0], 1, 1))
    return (numpy.arange(shape[1])[:, None] + start) % shape[1]


def carry_over(places: Places) -> Callable[[Generator, Shape], Array]:
    """What runs after one strategy is 4 % slower, across rounds, too. It cannot slow itself within a round: a bias of
    the design."""

    def drawn(rng: Generator, shape: Shape) -> Array:
        logs, place = runs(rng, shape, 0.3), places(rng, shape)
        of_hot = numpy.where(drawn_strategy(rng, shape, first=0), place, 0).sum(axis=1, keepdims=True)
        after = place == of_hot + 1
        after[..., 1:] |= (place[..., 1:] == 0) & (of_hot[..., :-1] == shape[1] - 1)
        return logs - 0.04 * after

    return drawn


# --- tails and scales of runs ---------------------------------------------------------------------------------------


def noisy_in_some_rounds(rng: Generator, shape: Shape) -> Array:
    """One strategy, not the baseline, has eight times the noise in a third of the rounds."""
    noisy = drawn_strategy(rng, shape) & (rng.random((shape[0], 1, shape[2])) < 1 / 3)
    return runs(rng, shape) + 8 * RUN_SD * noisy * rng.normal(size=shape)


def calm_and_loud_rounds(rng: Generator, shape: Shape) -> Array:
    """A round's noise has one size for all strategies, which is lognormal over rounds; rounds slow nothing."""
    return RUN_SD * rng.lognormal(0, 1, (shape[0], 1, shape[2])) * rng.normal(size=shape)


def modes(share: float, slower: float) -> Callable[[Generator, Shape], Array]:
    """Where a launch lands decides: this share of the launches is slower by that much, and all else is quiet, 0.1 %."""

    def drawn(rng: Generator, shape: Shape) -> Array:
        return runs(rng, shape, 0.1) - slower * (rng.random(shape) < share)

    return drawn


def heavy_tails(rng: Generator, shape: Shape) -> Array:
    """Runs are t(2), of no finite variance; rounds slow nothing."""
    return RUN_SD * rng.standard_t(2, size=shape)


def busy_round(rng: Generator, shape: Shape) -> Array:
    """One round of the set meets a busy machine: each of its runs loses an amount of its own, 10 % on average."""
    busy = numpy.arange(shape[2]) == rng.integers(shape[2], size=(shape[0], 1, 1))
    return runs(rng, shape) - busy * rng.exponential(0.1, (*shape[:2], 1))


def noisy_baseline(rng: Generator, shape: Shape) -> Array:
    """The baseline has five times the noise of the others."""
    logs = runs(rng, shape, 0.5)
    logs[:, 0] += 2.5 * RUN_SD * rng.normal(size=logs[:, 0].shape)
    return logs


def noisy_last(rng: Generator, shape: Shape) -> Array:
    """The last strategy has ten times the noise of the others."""
    logs = runs(rng, shape, 0.3)
    logs[:, -1] += 3 * RUN_SD * rng.normal(size=logs[:, -1].shape)
    return logs


def stalls(rng: Generator, shape: Shape) -> Array:
    """The last strategy stalls in one launch of six, by 12 %, and its mean logarithm is that of the others."""
    logs = runs(rng, shape, 0.3)
    logs[:, -1] += 0.02 - 0.12 * (rng.random(logs[:, -1].shape) < 1 / 6)
    return logs


def coarse_clock(rng: Generator, shape: Shape) -> Array:
    """Rates are read in steps of 1 %, and the noise is a third of a step: many are equal. Rounds slow nothing."""
    rate = 100 + rng.random((shape[0], 1, 1))
    return numpy.log(numpy.round(rate * numpy.exp(0.3 * RUN_SD * rng.normal(size=shape))))


# --- what runs have in common ---------------------------------------------------------------------------------------


def opposed_neighbours(rng: Generator, shape: Shape) -> Array:
    """What a round gives to a strategy it takes from its neighbour in the table; r = -0.9."""
    logs, num_pairs = runs(rng, shape, 0.3), shape[1] // 2
    gain = RUN_SD * rng.normal(size=(shape[0], num_pairs, shape[2]))
    logs[:, : 2 * num_pairs : 2] += gain
    logs[:, 1 : 2 * num_pairs : 2] -= gain
    return logs


def alike_neighbours(rng: Generator, shape: Shape) -> Array:
    """Neighbours in the table share nearly all of their noise; r = 0.99."""
    shared = RUN_SD * rng.normal(size=(shape[0], (shape[1] + 1) // 2, shape[2]))
    return runs(rng, shape, 0.1) + shared.repeat(2, axis=1)[:, : shape[1]]


# --- what each strategy does by itself over the rounds ---------------------------------------------------------------


def slow_periods(rng: Generator, shape: Shape) -> Array:
    """In half of the periods of three rounds each strategy is slower by an amount of its own, up to 4 %."""
    period = (numpy.arange(shape[2]) + rng.integers(3, size=(shape[0], 1, 1))) // 3
    num_periods = (shape[2] + 1) // 3 + 1
    slowed = rng.random((shape[0], 1, num_periods)) < 0.5
    loss = slowed * rng.uniform(0, 0.04, (*shape[:2], num_periods))
    return runs(rng, shape, 0.3) - numpy.take_along_axis(loss, period, axis=2)


def own_trends(rng: Generator, shape: Shape) -> Array:
    """Each strategy has a straight trend of its own, up to 3 % either way, which is zero in the middle of the set."""
    return runs(rng, shape, 0.5) + numpy.linspace(-1, 1, shape[2]) * rng.uniform(-0.03, 0.03, (*shape[:2], 1))


def own_memory(rng: Generator, shape: Shape) -> Array:
    """Each strategy's own noise is AR(0.7) over the rounds."""
    return runs(rng, shape, 0) + RUN_SD * autoregressive(rng, shape, 0.7)


def own_levels(rng: Generator, shape: Shape) -> Array:
    """Each strategy has a level that lasts for the session, of sd 1 %, and quiet runs, 0.3 %."""
    return runs(rng, shape, 0.3) + RUN_SD * rng.normal(size=(*shape[:2], 1))


# --- what is missing -------------------------------------------------------------------------------------------------


def without(lost: Array, logs: Array, keep_first: Array) -> Array:
    """Without the runs that are lost, but the two of each strategy that come first by `keep_first`, [as logs]."""
    kept = keep_first.argsort(axis=2).argsort(axis=2) < 2
    return numpy.where(lost & ~kept, numpy.nan, logs)


def lost_when_slow(rng: Generator, shape: Shape) -> Array:
    """Runs more than 1.5 % below the level of their round are lost. One strategy has three times the noise, so that
    what is left of it is biased upward."""
    own = RUN_SD * rng.normal(size=shape) * numpy.where(drawn_strategy(rng, shape), 3, 1)
    return without(own < -1.5 * RUN_SD, own + runs(rng, shape, 0), -own)


def lost_at_random(rng: Generator, shape: Shape) -> Array:
    """Every fifth run is lost, whatever its speed."""
    return without(rng.random(shape) < 0.2, runs(rng, shape), rng.random(shape))


CASES: dict[str, Callable[[Generator, Shape], Array]] = {
    "plain": runs,
    "drift in rounds, random orders": drift_in_rounds(random_places),
    "drift in rounds, the suite's orders": drift_in_rounds(suite_places),
    "drift in rounds, rotated order": drift_in_rounds(rotated_places),
    "carry-over of 4 %, random orders": carry_over(random_places),
    "carry-over of 4 %, the suite's orders": carry_over(suite_places),
    "one strategy noisy in some rounds": noisy_in_some_rounds,
    "calm and loud rounds": calm_and_loud_rounds,
    "two modes": modes(0.5, 0.04),
    "a rare slow mode": modes(0.2, 0.06),
    "runs are t(2)": heavy_tails,
    "one busy round": busy_round,
    "baseline 5x noisier": noisy_baseline,
    "one strategy 10x noisier": noisy_last,
    "one strategy stalls": stalls,
    "rates in steps of 1 %": coarse_clock,
    "neighbours opposed": opposed_neighbours,
    "neighbours alike": alike_neighbours,
    "slow periods of three rounds": slow_periods,
    "a trend for each strategy": own_trends,
    "AR(0.7) strategies": own_memory,
    "a level for each session": own_levels,
    "lost when slow": lost_when_slow,
    "a fifth lost, two rounds kept": lost_at_random,
}

DISPUTED = (
    *(case for case in CASES if case.startswith("carry-over")),
    *("drift in rounds, rotated order", "a level for each session", "lost when slow"),
)
"""What one strategy does or meets here is its own, for as long as the set was measured: no statistic could tell it from
a difference."""


def draw(case: str, rng: Generator, num_sets: int, num_strategies: int, num_rounds: int) -> Array:
    """Logs of a case, [num_sets, num_strategies, num_rounds]."""
    return CASES[case](rng, (num_sets, num_strategies, num_rounds))


# --- two variants, round by round, as in hostile_generators.py --------------------------------------------------------


def pair_stalls(rng: Generator, b_first: Array) -> Pair:
    """Quiet runs, 0.3 %; B stalls in one of six, by 12 %, and its mean logarithm is that of A."""
    a, b = 0.3 * RUN_SD * rng.normal(size=(2, *b_first.shape))
    return a, b + 0.02 - 0.12 * (rng.random(b_first.shape) < 1 / 6)


def pair_memory(rng: Generator, b_first: Array) -> Pair:
    """The ratio is AR(0.7) over the rounds."""
    ratio = 4 * RUN_SD * autoregressive(rng, b_first.shape, 0.7)
    return -ratio / 2, ratio / 2


PAIRS: dict[str, Callable[[Generator, Array], Pair]] = {
    "two modes": pair_of(lambda rng, shape: 0.1 * RUN_SD * rng.normal(size=shape) - 0.04 * (rng.random(shape) < 0.5)),
    "B stalls": pair_stalls,
    "AR(0.7) ratio": pair_memory,
}
