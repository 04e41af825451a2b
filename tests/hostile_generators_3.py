"""A third auditor's noise, in the frame of hostile_generators.py.

    from hostile_generators_3 import CASES, draw
    logs = draw("throttling with recovery", rng, num_sets=1000, num_strategies=10, num_rounds=5)

Written from the sentences of README.md, before scripts/stats was read. All strategies are equally fast in truth: in the
mean of their logarithms over many sessions. A run's own sd is 2 %, and a round slows all of its runs alike, with an sd
of 3 %, unless a case says otherwise. What a machine does over time is drawn run by run, in the suite's order.
"""

from collections.abc import Callable

import numpy
from generators import autoregressive
from hostile_generators import Array, Pair, Shape, by_time, num_runs, pair_by_time, pair_of
from numpy.random import Generator

from scripts.runner.round_order import run_order

RUN_SD = 0.02
ROUND_SD = 0.03


# --- pieces ---------------------------------------------------------------------------------------------------------


def own(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Independent normal runs."""
    return RUN_SD * rng.normal(size=shape)


def rounds(rng: Generator, shape: Shape) -> Array:
    """What a round does to all of its runs."""
    return ROUND_SD * rng.normal(size=(shape[0], 1, shape[2]))


def one_strategy(rng: Generator, shape: Shape, first: int = 0) -> Array:
    """A strategy of each set, but none before `first`, int [num_sets]."""
    return rng.integers(first, shape[1], size=shape[0])


# --- what a machine does over time, of [num_sets, runs] --------------------------------------------------------------


def hours(rng: Generator, runs: tuple[int, int]) -> Array:
    """Noise whose size follows the hour: a wave of two periods a set; 5 times as large at noon as at night."""
    phase = rng.uniform(0, 2 * numpy.pi, (runs[0], 1))
    return own(rng, runs) * numpy.exp(0.8 * numpy.sin(4 * numpy.pi * numpy.arange(runs[1]) / runs[1] + phase))


def volatile(rng: Generator, runs: tuple[int, int]) -> Array:
    """GARCH(1, 1): what was loud stays loud for some runs; the noise of each run has mean 0."""
    found, variance = numpy.empty(runs), numpy.full(runs[0], RUN_SD**2)
    for place in range(runs[1]):
        found[:, place] = numpy.sqrt(variance) * rng.normal(size=runs[0])
        variance = 0.1 * RUN_SD**2 + 0.35 * found[:, place] ** 2 + 0.55 * variance
    return found


def throttle(rng: Generator, runs: tuple[int, int]) -> Array:
    """Each run heats the machine by a random amount. Above a limit the clock falls by 12 %, and stays low until the
    machine is cool: hysteresis."""
    found = own(rng, runs)
    heat, low = rng.uniform(0, 1, runs[0]), numpy.zeros(runs[0], dtype=bool)
    for place in range(runs[1]):
        found[:, place] -= 0.12 * low
        heat += numpy.where(low, -0.25, 0.15) * rng.exponential(1, runs[0])
        low = (heat > 1) | (low & (heat > 0.3))
    return found


def boost(rng: Generator, runs: tuple[int, int]) -> Array:
    """The clock boosts by 6 % or does not, and changes between two runs with 15 %."""
    changes = rng.random(runs) < 0.15
    state = (rng.integers(2, size=(runs[0], 1)) + changes.cumsum(axis=1)) % 2
    return own(rng, runs) / 2 + 0.06 * state


def timer(rng: Generator, runs: tuple[int, int]) -> Array:
    """A job by the clock, each 7.3 runs, slows the run that it meets by 10 %."""
    phase = rng.uniform(0, 7.3, (runs[0], 1))
    return own(rng, runs) / 2 - 0.1 * ((numpy.arange(runs[1]) + phase) % 7.3 < 1)


def of_machine(state: Callable[[Generator, tuple[int, int]], Array]) -> Callable[[Generator, Shape], Array]:
    """Runs that have this state of the machine, and nothing else."""
    return lambda rng, shape: by_time(state(rng, (shape[0], num_runs(shape))), shape)


# --- noise that depends on the order ---------------------------------------------------------------------------------


def noisy_after_one(rng: Generator, shape: Shape) -> Array:
    """What runs after one strategy has six times the noise, but no bias: that one leaves processes behind."""
    scale, after, hot = numpy.ones(shape), numpy.zeros(shape[0], dtype=bool), one_strategy(rng, shape)
    for number in range(shape[2]):
        for strategy in run_order(shape[1], number + 1):
            scale[:, strategy, number] = numpy.where(after, 6, 1)
            after = hot == strategy
    return rounds(rng, shape) + scale * own(rng, shape)


def echo(rng: Generator, shape: Shape) -> Array:
    """What a run loses by chance, half is lost by the next run, too."""
    runs = own(rng, (shape[0], num_runs(shape)))
    runs[:, 1:] += 0.5 * numpy.minimum(runs[:, :-1], 0)
    return rounds(rng, shape) + by_time(runs, shape)


def last_of_round_noisy(rng: Generator, shape: Shape) -> Array:
    """The last third of each round has five times the noise: the others on the machine come to work."""
    late = numpy.arange(num_runs(shape)) % shape[1] >= 2 * shape[1] / 3
    return rounds(rng, shape) + by_time(own(rng, (shape[0], num_runs(shape))) * numpy.where(late, 5, 1), shape)


# --- how seconds are read --------------------------------------------------------------------------------------------


def whole_seconds(rng: Generator, shape: Shape) -> Array:
    """A run's windows take 12 to 13 seconds, and the clock tells whole ones: most runs are equal, and a set may be
    without any spread."""
    seconds = (12 + rng.random((shape[0], 1, 1))) * numpy.exp(-own(rng, shape))
    return -numpy.log(numpy.floor(seconds))


def mostly_equal(rng: Generator, shape: Shape) -> Array:
    """Seven of ten runs of a round take the same time to the last digit; the others differ by 2 % either way."""
    return rounds(rng, shape) + own(rng, shape) * (rng.random(shape) < 0.3)


# --- tails and scales ------------------------------------------------------------------------------------------------


def skews(rng: Generator, shape: Shape) -> Array:
    """Each strategy is slowed by an exponential of a scale of its own, 1 to 10 %; the mean logarithms are equal."""
    scale = numpy.exp(rng.uniform(numpy.log(0.01), numpy.log(0.1), (*shape[:2], 1)))
    return rounds(rng, shape) + scale * (1 - rng.exponential(1, shape))


def skews_either_way(rng: Generator, shape: Shape) -> Array:
    """The baseline is slowed by an exponential of 6 %, the others are sped up by one; the means are equal."""
    sign = numpy.where(numpy.arange(shape[1]) == 0, 1, -1)[:, None]
    return rounds(rng, shape) + 0.06 * sign * (1 - rng.exponential(1, shape))


def alternating(rng: Generator, shape: Shape) -> Array:
    """The baseline has eight times the noise in each second round."""
    logs = own(rng, shape)
    logs[:, 0] *= numpy.where((numpy.arange(shape[2]) + rng.integers(2, size=(shape[0], 1))) % 2, 8, 1)
    return logs + rounds(rng, shape)


# --- what each strategy does by itself over the rounds ---------------------------------------------------------------


def weak_memory(rng: Generator, shape: Shape) -> Array:
    """Each strategy's own noise is AR(0.3) over the rounds: too weak to be seen in a set."""
    return rounds(rng, shape) + RUN_SD * autoregressive(rng, shape, 0.3)


def memory(rng: Generator, shape: Shape) -> Array:
    """Each strategy's own noise is AR(0.5) over the rounds, as large in the first round as later."""
    return rounds(rng, shape) + RUN_SD * autoregressive(rng, shape, 0.5)


def unequal_response(rng: Generator, shape: Shape) -> Array:
    """The machine drifts by an AR(0.8) of 9 % over the rounds, and a strategy has 1 ± 0.3 of it. Runs vary by 6 %."""
    drift = 0.09 * autoregressive(rng, (shape[0], 1, shape[2]), 0.8)
    return (1 + 0.3 * rng.normal(size=(*shape[:2], 1))) * drift + 3 * own(rng, shape)


def opposed_memory(rng: Generator, shape: Shape) -> Array:
    """Each strategy's own noise is AR(-0.6) over the rounds: a slow run is followed by a fast one."""
    return rounds(rng, shape) + RUN_SD * autoregressive(rng, shape, -0.6)


def resumed(rng: Generator, shape: Shape) -> Array:
    """The set was stopped in the middle and resumed on another day, which moved each strategy by 2 % of its own."""
    second = numpy.arange(shape[2]) >= shape[2] // 2
    return rounds(rng, shape) + own(rng, shape) / 2 + second * RUN_SD * rng.normal(size=(*shape[:2], 1))


# --- what is missing -------------------------------------------------------------------------------------------------


def slowest_lost(rng: Generator, shape: Shape) -> Array:
    """In a third of the rounds the slowest run is lost; all strategies are alike in that."""
    logs = rounds(rng, shape) + own(rng, shape)
    slowest = logs == logs.min(axis=1, keepdims=True)
    return numpy.where(slowest & (rng.random((shape[0], 1, shape[2])) < 0.3), numpy.nan, logs)


def added_late(rng: Generator, shape: Shape) -> Array:
    """The second half of the strategies lacks the first third of the rounds, and the machine slows by 20 % over the
    set: unequal numbers of runs, at other times."""
    drift = by_time(numpy.tile(numpy.linspace(0, -0.2, num_runs(shape)), (shape[0], 1)), shape)
    logs = rounds(rng, shape) + own(rng, shape) + drift
    logs[:, (shape[1] + 1) // 2 :, : shape[2] // 3] = numpy.nan
    return logs


def added_late_of_wide(rng: Generator, shape: Shape) -> Array:
    """As above, and rounds slow all by an AR(0.8) of 8 %."""
    logs = own(rng, shape) + 0.08 * autoregressive(rng, (shape[0], 1, shape[2]), 0.8)
    logs[:, (shape[1] + 1) // 2 :, : shape[2] // 3] = numpy.nan
    return logs


def retried(rng: Generator, shape: Shape) -> Array:
    """A run that is 1.5 sd slower than its round's level is lost and run again at the end of the set, once, under the
    conditions of that time; all strategies are alike in that."""
    noise, level = own(rng, shape), rounds(rng, shape)
    end = ROUND_SD * rng.normal(size=(shape[0], 1, 1))
    return numpy.where(noise < -1.5 * RUN_SD, end + own(rng, shape), level + noise)


CASES: dict[str, Callable[[Generator, Shape], Array]] = {
    "noise by the hour": of_machine(hours),
    "loud runs follow loud ones": of_machine(volatile),
    "throttling with recovery": of_machine(throttle),
    "boost comes and goes": of_machine(boost),
    "a job each 7.3 runs": of_machine(timer),
    "6x noisier after one strategy": noisy_after_one,
    "half a loss is lost again": echo,
    "end of a round 5x noisier": last_of_round_noisy,
    "whole seconds": whole_seconds,
    "mostly equal": mostly_equal,
    "each strategy skewed": skews,
    "baseline skewed the other way": skews_either_way,
    "baseline 8x noisier by turns": alternating,
    "AR(0.3) strategies": weak_memory,
    "AR(0.5) strategies": memory,
    "unequal responses to a drift": unequal_response,
    "AR(-0.6) strategies": opposed_memory,
    "resumed on another day": resumed,
    "slowest of a round lost": slowest_lost,
    "half added late, drift": added_late,
    "half added late, AR(0.8) rounds": added_late_of_wide,
    "slow runs run again": retried,
}

DISPUTED = ("resumed on another day",)
"""What one day does to one strategy is its own, for as long as the day lasts."""

DRIFTING = ("AR(0.3) strategies", "AR(0.5) strategies", "unequal responses to a drift")
"""Strategies drift by themselves or unequally: README.md promises less than 95 % there."""


def draw(case: str, rng: Generator, num_sets: int, num_strategies: int, num_rounds: int) -> Array:
    """Logs of a case, [num_sets, num_strategies, num_rounds]."""
    return CASES[case](rng, (num_sets, num_strategies, num_rounds))


# --- two variants, round by round, as in hostile_generators.py --------------------------------------------------------


def pair_state(state: Callable[[Generator, tuple[int, int]], Array]) -> Callable[[Generator, Array], Pair]:
    """A and B have the state of the machine [num_sets, runs], and nothing else."""

    def drawn(rng: Generator, b_first: Array) -> Pair:
        return pair_by_time(state(rng, (b_first.shape[0], 2 * b_first.shape[1])), b_first)

    return drawn


def pair_noisy_after_b(rng: Generator, b_first: Array) -> Pair:
    """What runs after B has six times the noise, but no bias."""
    is_b = numpy.stack([b_first, ~b_first], axis=-1).reshape(len(b_first), -1)
    scale = numpy.ones(is_b.shape)
    scale[:, 1:] += 5 * is_b[:, :-1]
    return pair_by_time(scale * own(rng, scale.shape), b_first)


def pair_weak_memory(rng: Generator, b_first: Array) -> Pair:
    """The ratio is AR(0.3) over the rounds."""
    ratio = 2 * RUN_SD * autoregressive(rng, b_first.shape, 0.3)
    return -ratio / 2, ratio / 2


def pair_loud_later(rng: Generator, b_first: Array) -> Pair:
    """The first six rounds are quiet, 0.2 %; then the machine is in use, 4 %."""
    scale = numpy.where(numpy.arange(b_first.shape[1]) < 6, 0.1, 2)
    return scale * own(rng, b_first.shape), scale * own(rng, b_first.shape)


PAIRS: dict[str, Callable[[Generator, Array], Pair]] = {
    "noise by the hour": pair_state(hours),
    "loud runs follow loud ones": pair_state(volatile),
    "throttling with recovery": pair_state(throttle),
    "boost comes and goes": pair_state(boost),
    "a job each 7.3 runs": pair_state(timer),
    "6x noisier after B": pair_noisy_after_b,
    "whole seconds": pair_of(lambda rng, shape: -numpy.log(numpy.floor(12.3 * numpy.exp(-own(rng, shape))))),
    "mostly equal": pair_of(lambda rng, shape: own(rng, shape) * (rng.random(shape) < 0.3)),
    "AR(0.3) ratio": pair_weak_memory,
    "loud from the seventh round on": pair_loud_later,
}


def rounds_in_budget(pair: Pair, budget: float) -> Array:
    """How many rounds of A and B end within a budget of this many runs of the mean speed, [num_sets]: where the machine
    is slow, the budget ends after fewer rounds."""
    seconds = numpy.exp(-pair[0]) + numpy.exp(-pair[1])
    return (seconds.cumsum(axis=1) <= budget).sum(axis=1)


# --- days, as in hostile_generators.py --------------------------------------------------------------------------------


def days_of_two_kinds(rng: Generator, shape: Shape) -> Array:
    """A boot decides: each second day, by chance, is 6 % slower for all strategies."""
    return numpy.broadcast_to(-0.06 * (rng.random((shape[0], 1, shape[2])) < 0.5), shape)


def days_rarely_bad(rng: Generator, shape: Shape) -> Array:
    """One day of six is 10 % slower; the others differ by 0.3 %."""
    bad = rng.random((shape[0], 1, shape[2])) < 1 / 6
    return numpy.broadcast_to(0.003 * rng.normal(size=bad.shape) - 0.1 * bad, shape)


def days_skewed(rng: Generator, shape: Shape) -> Array:
    """A day slows all strategies by an exponential of 2 %."""
    return numpy.broadcast_to(-rng.exponential(0.02, (shape[0], 1, shape[2])), shape)


DAYS: dict[str, Callable[[Generator, Shape], Array]] = {
    "days of two kinds": days_of_two_kinds,
    "a rare bad day": days_rarely_bad,
    "days are exponential": days_skewed,
}


# --- images that are classified ---------------------------------------------------------------------------------------


def correct_images(rng: Generator, num_sets: int, num_seeds: int, num_images: int, case: str) -> Array:
    """How many validation images are right, [num_sets, num_seeds], where 60 % are on average.

    "independent": each image is. "hard images": an image has a difficulty of its own, and all seeds have the same
    images. "seeds differ": a seed's accuracy has an sd of 3 points. "near one": 98 % are right.
    """
    shape = (num_sets, num_seeds, num_images)
    if case == "independent":
        return (rng.random(shape) < 0.6).sum(axis=2)
    if case == "hard images":
        return (rng.random(shape) < rng.beta(0.6, 0.4, (num_sets, 1, num_images))).sum(axis=2)
    if case == "seeds differ":
        return (rng.random(shape) < 0.6 + 0.03 * rng.normal(size=(num_sets, num_seeds, 1))).sum(axis=2)
    if case == "near one":
        return (rng.random(shape) < 0.98).sum(axis=2)
    raise KeyError(case)


ACCURACIES = {"independent": 0.6, "hard images": 0.6, "seeds differ": 0.6, "near one": 0.98}
"""The accuracy over many seeds and images."""


# --- windows of one run -----------------------------------------------------------------------------------------------


def windows(rng: Generator, num_sets: int, num_launches: int, num_windows: int, case: str) -> Array:
    """Log speeds of the windows of launches, [num_sets, num_launches, num_windows]; the same truth for each launch.

    "clock falls": a launch slows by a share of its own, up to 10 %, in its windows. "stall in one": one window of ten
    takes half as long again. "launch has a level": 2 %, and windows differ by 0.2 %.
    """
    shape = (num_sets, num_launches, num_windows)
    quiet = 0.002 * rng.normal(size=shape)
    if case == "clock falls":
        return quiet - rng.uniform(0, 0.1, (num_sets, num_launches, 1)) * numpy.linspace(0, 1, num_windows)
    if case == "stall in one":
        return quiet - numpy.log(1.5) * (rng.random(shape) < 0.1)
    if case == "launch has a level":
        return quiet + own(rng, (num_sets, num_launches, 1))
    raise KeyError(case)


WINDOWS = ("clock falls", "stall in one", "launch has a level")
