"""Does the method keep its promise on this set? The family simulated with the set's own covariance.

Rounds are drawn, each by itself, from a normal distribution whose covariance between strategies is the set's own: every
strategy is as noisy as it is here, and rounds have as much in common. Heavy tails and autocorrelated rounds
are not in it. All strategies are then equally fast, so that each verdict is a false alarm; and, one at a time, faster
by DIFFERENCE, which is to be found. Where the drawn rounds look autocorrelated, there is no verdict, as in a set.
Seeded. Needs numpy and scipy only.
"""

from collections.abc import Mapping

import numpy

from scripts.stats.families import ThroughputSample, log_table
from scripts.stats.independence import rounds_are_autocorrelated, standard_error_factor
from scripts.stats.intervals import MIN_ROUNDS, sidak_critical_value

NUM_SETS = 2000
DIFFERENCE = 0.10


def calibrate(logs: numpy.ndarray, pairs: numpy.ndarray) -> tuple[float, float, numpy.ndarray]:
    """(fraction of simulated families with a false alarm, of those without a verdict, and, for each pair, of those
    in which DIFFERENCE is found, [num_pairs]).

    logs: log throughput, float64 [num_strategies, num_rounds], without gaps. pairs: int [num_pairs, 2], places in it.
    """
    num_rounds = logs.shape[1]
    root = (logs - logs.mean(axis=1, keepdims=True)) / numpy.sqrt(num_rounds - 1)
    drawn = root @ numpy.random.default_rng(0).normal(size=(NUM_SETS, num_rounds, num_rounds))
    decided = ~rounds_are_autocorrelated(drawn)
    differences = drawn[:, pairs[:, 0]] - drawn[:, pairs[:, 1]]
    means = differences.mean(axis=2)
    errors = standard_error_factor(drawn)[:, None] * differences.std(axis=2, ddof=1) / numpy.sqrt(num_rounds)
    half = sidak_critical_value(len(pairs), num_rounds - 1) * errors
    false_alarms = (numpy.abs(means) > half).any(axis=1) & decided
    found = (means + numpy.log1p(DIFFERENCE) > half) & decided[:, None]
    return float(false_alarms.mean()), float(1 - decided.mean()), found.mean(axis=0)


def calibration_text(samples: Mapping[str, ThroughputSample], baselines: Mapping[str, str]) -> str:
    """The line of a report; '' without a comparison. baselines: strategy -> baseline, both of `samples`."""
    if not baselines:
        return ""
    table = log_table(samples)
    complete = table[:, ~numpy.isnan(table).any(axis=0)]
    if complete.shape[1] < MIN_ROUNDS:
        return f"Calibration: fewer than {MIN_ROUNDS} rounds of every strategy cannot tell how often this errs."
    places = {name: place for place, name in enumerate(samples)}
    pairs = numpy.array([(places[of], places[to]) for of, to in baselines.items()])
    false_alarms, undecided, power = calibrate(complete, pairs)
    ends = dict.fromkeys(f"{100 * end:.0f}" for end in (power.min(), power.max()))
    of_which = ", depending on the strategy" if len(ends) > 1 else ""
    return (
        f"Calibration: of {NUM_SETS:,} simulated sets of {complete.shape[1]} independent normal rounds with this set's "
        f"own covariance of strategies, {100 * false_alarms:.1f} % raise a false alarm (5 % are nominal), "
        f"{100 * undecided:.0f} % have no verdict since their rounds seem to be autocorrelated, and a difference of "
        f"{100 * DIFFERENCE:.0f} % from the baseline is found in {' to '.join(ends)} %{of_which}. "
        "Where the noise of each strategy drifts by itself, families with a verdict err more often."
    )
