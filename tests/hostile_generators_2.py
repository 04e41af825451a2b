"""
Kinds of noise of a second audit, written before its author read the project's method.

Each generator takes (generator, num_strategies, num_rounds, true_log_differences) and returns log throughputs
of shape (num_rounds, num_strategies). A run that is missing is NaN. Column 0 is the baseline.
All noise of a strategy has mean zero over many sessions (in logs), except where the docstring says otherwise:
so a set with true differences of zero has no difference to find, and any difference stated is false.
Where a kind needs the order of the runs, every round has a random order of its own.
"""

from collections.abc import Callable

import numpy as np

Generator = Callable[[np.random.Generator, int, int, np.ndarray], np.ndarray]

NOISE = 0.01  # the standard deviation of one run, in logs: 1%


def _rounds(generator: np.random.Generator, num_strategies: int, num_rounds: int, scale: float = 1.0) -> np.ndarray:
    """Noise that each run has in every kind: a level that the round shares (2%) and the run's own noise."""
    shared = generator.normal(0.0, 2 * NOISE, size=(num_rounds, 1))
    return shared + generator.normal(0.0, scale * NOISE, size=(num_rounds, num_strategies))


def _positions(generator: np.random.Generator, num_strategies: int, num_rounds: int) -> np.ndarray:
    """The place (0 is first) of each strategy in each round, in a random order."""
    return np.stack([generator.permutation(num_strategies) for _ in range(num_rounds)])


def plain(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The control: rounds with a shared level, and equal, independent normal noise in each run."""
    return true_log_differences + _rounds(generator, num_strategies, num_rounds)


def drift_by_position(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The machine warms up: the last run of a round is 6% slower than the first, in a random order each round."""
    place = _positions(generator, num_strategies, num_rounds) / max(num_strategies - 1, 1)
    return true_log_differences - 0.06 * place + _rounds(generator, num_strategies, num_rounds, 0.3)


def rotated_drift(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The same warming, but the order only rotates from round to round (biased until each place is used once)."""
    start = np.arange(num_rounds)[:, None] + generator.integers(num_strategies)
    place = (np.arange(num_strategies)[None, :] + start) % num_strategies / max(num_strategies - 1, 1)
    return true_log_differences - 0.06 * place + _rounds(generator, num_strategies, num_rounds, 0.3)


def one_noisy_in_some_rounds(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """One strategy (not the baseline) has eight times the noise in a third of the rounds, at random."""
    noise = _rounds(generator, num_strategies, num_rounds)
    noisy = generator.integers(1, num_strategies)
    rounds = generator.random(num_rounds) < 1 / 3
    noise[rounds, noisy] += generator.normal(0.0, 8 * NOISE, size=int(rounds.sum()))
    return true_log_differences + noise


def calm_and_loud_rounds(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Every strategy's noise has the same size within a round, but that size varies over rounds (log-normal)."""
    size = np.exp(generator.normal(0.0, 1.0, size=(num_rounds, 1)))
    noise = size * generator.normal(0.0, NOISE, size=(num_rounds, num_strategies))
    return true_log_differences + noise


def two_modes(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Where a launch lands decides: half of the launches are 4% slower, and all else is quiet (0.1%)."""
    slow = generator.random((num_rounds, num_strategies)) < 0.5
    return true_log_differences - 0.04 * slow + _rounds(generator, num_strategies, num_rounds, 0.1)


def rare_slow_mode(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """One launch in five lands badly (6% slower), and all else is quiet (0.1%)."""
    slow = generator.random((num_rounds, num_strategies)) < 0.2
    return true_log_differences - 0.06 * slow + _rounds(generator, num_strategies, num_rounds, 0.1)


def heavy_tails(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Each run has Student noise with two degrees of freedom: no finite variance."""
    return true_log_differences + NOISE * generator.standard_t(2, size=(num_rounds, num_strategies))


def lost_when_slow(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Runs are lost when they are slow: a run more than 1.5% under its level is missing (two rounds are kept).

    One strategy has three times the noise, so that the loss flatters it: what is left of it is biased upwards.
    """
    noise = generator.normal(0.0, NOISE, size=(num_rounds, num_strategies))
    noise[:, generator.integers(1, num_strategies)] *= 3
    lost = noise < -1.5 * NOISE
    for column in range(num_strategies):
        best = np.argsort(noise[:, column])[::-1][:2]
        lost[best, column] = False
    logs = true_log_differences + generator.normal(0.0, 2 * NOISE, size=(num_rounds, 1)) + noise
    return np.where(lost, np.nan, logs)


def lost_at_random(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """A fifth of the runs is missing, whatever their rate was (two rounds of each strategy are kept)."""
    logs = true_log_differences + _rounds(generator, num_strategies, num_rounds)
    lost = generator.random(logs.shape) < 0.2
    for column in range(num_strategies):
        lost[generator.permutation(num_rounds)[:2], column] = False
    return np.where(lost, np.nan, logs)


def opposed_pairs(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Neighbours in the table take from each other: what one gains in a round, the other loses (r = -0.9)."""
    noise = _rounds(generator, num_strategies, num_rounds, 0.3)
    for first in range(0, num_strategies - 1, 2):
        gain = generator.normal(0.0, NOISE, size=num_rounds)
        noise[:, first] += gain
        noise[:, first + 1] -= gain
    return true_log_differences + noise


def close_pairs(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Neighbours in the table share nearly all of their noise (r = 0.99), beyond the level of the round."""
    noise = _rounds(generator, num_strategies, num_rounds, 0.1)
    shared = generator.normal(0.0, NOISE, size=(num_rounds, (num_strategies + 1) // 2))
    return true_log_differences + noise + np.repeat(shared, 2, axis=1)[:, :num_strategies]


def outlier_round(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """One round of the set meets a busy machine: each of its runs loses an amount of its own, 10% on average."""
    noise = _rounds(generator, num_strategies, num_rounds)
    noise[generator.integers(num_rounds)] -= generator.exponential(0.10, size=num_strategies)
    return true_log_differences + noise


def noisy_baseline(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The baseline has five times the noise of every other strategy."""
    noise = _rounds(generator, num_strategies, num_rounds, 0.5)
    noise[:, 0] += generator.normal(0.0, 2.5 * NOISE, size=num_rounds)
    return true_log_differences + noise


def one_noisy_strategy(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """One strategy (the last) has ten times the noise of every other one."""
    noise = _rounds(generator, num_strategies, num_rounds, 0.3)
    noise[:, -1] += generator.normal(0.0, 3 * NOISE, size=num_rounds)
    return true_log_differences + noise


def one_skewed_strategy(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The last strategy stalls in one launch of six (-12%); its mean in logs is kept equal, so its median is higher."""
    noise = _rounds(generator, num_strategies, num_rounds, 0.3)
    noise[:, -1] += 0.02 - 0.12 * (generator.random(num_rounds) < 1 / 6)
    return true_log_differences + noise


def quantised(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Rates are read in steps of 1% (the clock is coarse) and the noise is a third of a step: many exact ties."""
    rate = 100.0 + generator.random()
    logs = np.log(rate) + true_log_differences + generator.normal(0.0, 0.3 * NOISE, size=(num_rounds, num_strategies))
    return np.log(np.round(np.exp(logs)))


def slow_periods(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """In periods of three rounds something slows each strategy by an amount of its own (0 to 4%), drawn per period."""
    offset = generator.integers(3)
    period = (np.arange(num_rounds) + offset) // 3
    slowed = generator.random((period[-1] + 1, 1)) < 0.5
    loss = slowed * generator.uniform(0.0, 0.04, size=(period[-1] + 1, num_strategies))
    return true_log_differences - loss[period] + _rounds(generator, num_strategies, num_rounds, 0.3)


def own_trends(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Each strategy has a straight trend of its own over the session (up to 3% either way), zero at its middle."""
    time = np.linspace(-1.0, 1.0, num_rounds)[:, None]
    slope = generator.uniform(-0.03, 0.03, size=(1, num_strategies))
    return true_log_differences + time * slope + _rounds(generator, num_strategies, num_rounds, 0.5)


def own_memory(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """The noise of each strategy remembers the round before (stationary autoregression, 0.7)."""
    noise = np.empty((num_rounds, num_strategies))
    noise[0] = generator.normal(0.0, NOISE, size=num_strategies)
    for index in range(1, num_rounds):
        fresh = generator.normal(0.0, NOISE * np.sqrt(1 - 0.7**2), size=num_strategies)
        noise[index] = 0.7 * noise[index - 1] + fresh
    return true_log_differences + generator.normal(0.0, 2 * NOISE, size=(num_rounds, 1)) + noise


def carry_over(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """One hot strategy slows the run after it by 4% (random orders; across rounds too).

    It cannot slow itself within a round, so its rivals lose on average 4% / (number of strategies) more than it:
    a bias of the design, that no analysis of the rates alone can see.
    """
    logs = true_log_differences + _rounds(generator, num_strategies, num_rounds, 0.3)
    hot = generator.integers(num_strategies)
    before = -1
    for index, place in enumerate(_positions(generator, num_strategies, num_rounds)):
        for strategy in np.argsort(place):
            if before == hot:
                logs[index, strategy] -= 0.04
            before = strategy
    return logs


def session_placement(
    generator: np.random.Generator, num_strategies: int, num_rounds: int, true_log_differences: np.ndarray
) -> np.ndarray:
    """Each strategy has a level that lasts one session (1%) under quiet rounds (0.3%): zero over many sessions only."""
    level = generator.normal(0.0, NOISE, size=(1, num_strategies))
    return true_log_differences + level + _rounds(generator, num_strategies, num_rounds, 0.3)


KINDS: dict[str, Generator] = {
    kind.__name__: kind
    for kind in (
        plain,
        drift_by_position,
        rotated_drift,
        one_noisy_in_some_rounds,
        calm_and_loud_rounds,
        two_modes,
        rare_slow_mode,
        heavy_tails,
        lost_when_slow,
        lost_at_random,
        opposed_pairs,
        close_pairs,
        outlier_round,
        noisy_baseline,
        one_noisy_strategy,
        one_skewed_strategy,
        quantised,
        slow_periods,
        own_trends,
        own_memory,
        carry_over,
        session_placement,
    )
}
