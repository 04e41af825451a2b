"""Are the rounds of a set independent, or is each correlated with the round before?

Of autocorrelated rounds ten say less than ten independent ones, and Student's t errs. Independent rounds could have
come in any order. So the lag-1 correlation of the table, over all strategies, is compared with that of the same
rounds in other orders (a permutation test: exact, whatever strategies have in common in a round). Five rounds show it
in half of such sets only. In the others standard errors grow with the same correlation: to those of as many
independent rounds as these are worth, n (1 - r) / (1 + r) where n is large (Bayley and Hammersley 1946). Needs numpy
only.
"""

import functools
import itertools

import numpy

from scripts.results.intervals import MIN_ROUNDS, SMALLEST_SD

LEVEL = 0.08  # significance level: this share of sets with independent rounds gets no verdict, too
NUM_ORDERS = 999
MAX_LISTED = 5  # rounds whose orders are all tried
CORRELATIONS = numpy.linspace(0, 0.95, 96)  # of a round with the one before, in an AR(1) series
AUTOCORRELATED = (
    f"rounds look correlated with the round before; by chance about {100 * LEVEL:.0f} % of sets with independent "
    "rounds do, too, and more where the noise changes in the set"
)


@functools.cache
def _orders(num_rounds: int) -> numpy.ndarray:
    """int [num_orders, num_rounds]: orders of the rounds, their own first."""
    if num_rounds <= MAX_LISTED:
        return numpy.array([*itertools.permutations(range(num_rounds))])
    rng = numpy.random.default_rng(0)
    others = rng.permuted(numpy.tile(numpy.arange(num_rounds), (NUM_ORDERS, 1)), axis=1)
    return numpy.vstack([numpy.arange(num_rounds), others])


def order_p_value(logs: numpy.ndarray) -> numpy.ndarray:
    """p-value, [...], that rounds are independent, against a positive correlation with the round before.

    logs: log throughput, float64 [..., num_strategies, num_rounds], NaN for a run that is missing.
    """
    table = _standardise(logs)
    products, orders = table.swapaxes(-1, -2) @ table, _orders(logs.shape[-1])
    sums = numpy.zeros((*logs.shape[:-2], len(orders)))
    for first, second in itertools.pairwise(orders.T):
        sums += products[..., first, second]
    return (sums >= sums[..., :1] - 1e-9).mean(axis=-1)


def rounds_are_autocorrelated(logs: numpy.ndarray) -> numpy.ndarray:
    """Whether order_p_value is below LEVEL, bool [...]; False for a table that is all equal.

    logs: as of order_p_value.
    """
    return order_p_value(logs) < LEVEL


def shared_drift_p_value(logs: numpy.ndarray) -> float:
    """p-value that what a round does to all strategies is independent of the round before, against a positive
    correlation; 1 of fewer than MIN_ROUNDS rounds. Ratios are free of it where all strategies respond
    to it alike; the throughputs of strategies are not.

    logs: log throughput, float64 [num_strategies, num_rounds], NaN for a run that is missing.
    """
    if logs.shape[-1] < MIN_ROUNDS:
        return 1.0
    effects = numpy.nanmean(logs - numpy.nanmean(logs, axis=-1, keepdims=True), axis=0)
    return float(order_p_value(numpy.stack([effects, -effects])))  # opposed: they share nothing that would cancel


def standard_error_factor(logs: numpy.ndarray) -> numpy.ndarray:
    """By how much the standard error of a mean over rounds is larger than that of independent ones; [...], 1 or more.

    From the lag-1 correlation r of the table, over all strategies: the factor of the AR(1) series that show r on
    average. A series that has lost its mean shows less than its correlation; of independent ones r is -1/n (Kendall
    1954). logs: as of order_p_value.
    """
    table = _standardise(logs)
    total = (table**2).sum(axis=(-2, -1))
    correlation = (table[..., 1:] * table[..., :-1]).sum(axis=(-2, -1)) / numpy.maximum(total, SMALLEST_SD)
    shown, ratios = _autoregressive_series(logs.shape[-1])
    return numpy.sqrt(numpy.where(total > 0, numpy.interp(correlation, shown, ratios), 1.0))


@functools.cache
def _autoregressive_series(num_rounds: int) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Of AR(1) series with each of CORRELATIONS: the lag-1 correlation that they show without their mean, and the
    variance of the mean over what independent rounds of their spread would have."""
    lags = numpy.arange(num_rounds)
    powers = CORRELATIONS[:, None] ** lags
    with_first = powers.sum(axis=1)  # covariance of the first round with all
    with_all = 2 * (powers * (num_rounds - lags)).sum(axis=1) - num_rounds  # variance of the sum
    squares = num_rounds - with_all / num_rounds  # of deviations from the mean; below, of neighbours' products
    products = (num_rounds - 1) * (CORRELATIONS + with_all / num_rounds**2) - 2 * (with_all - with_first) / num_rounds
    return products / squares, with_all / num_rounds * (num_rounds - 1) / squares


def _standardise(logs: numpy.ndarray) -> numpy.ndarray:
    """Each strategy's logs without what a round does to all, with mean 0 and sd 1; 0 for a run that is missing."""
    table = logs - numpy.nanmean(logs, axis=-2, keepdims=True)
    table = table - numpy.nanmean(table, axis=-1, keepdims=True)
    sd = numpy.nanstd(table, axis=-1, keepdims=True)
    return numpy.nan_to_num(numpy.divide(table, sd, out=numpy.zeros_like(table), where=sd > SMALLEST_SD))
