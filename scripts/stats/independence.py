"""Are the rounds of a set repeats of one another, or does each take after the one before?

    from scripts.stats.independence import rounds_follow_one_another

Where the noise of strategies wanders over the rounds, ten rounds say less than ten repeats do, and Student's t errs: in
35 of 100 families where every strategy's noise is AR(0.5). Rounds that are repeats could have come in any order. So the
lag-1 correlation of the table, over all strategies, is compared with that of the same rounds in other orders (a
permutation test: exact, whatever strategies have in common in a round). Needs numpy only.
"""

import functools
import itertools

import numpy

from scripts.stats.intervals import SMALLEST_SD

LEVEL = 0.08  # of sets whose rounds are repeats, so many have no verdict
NUM_ORDERS = 999
MAX_LISTED = 5  # rounds whose orders are all tried
FOLLOWS = "rounds follow one another more than chance explains, so that they are no repeats"


@functools.cache
def _orders(num_rounds: int) -> numpy.ndarray:
    """int [num_orders, num_rounds]: orders of the rounds, their own first."""
    if num_rounds <= MAX_LISTED:
        return numpy.array([*itertools.permutations(range(num_rounds))])
    rng = numpy.random.default_rng(0)
    others = rng.permuted(numpy.tile(numpy.arange(num_rounds), (NUM_ORDERS, 1)), axis=1)
    return numpy.vstack([numpy.arange(num_rounds), others])


def order_p_value(logs: numpy.ndarray) -> float:
    """p-value that rounds are repeats, against a positive correlation with the round before.

    logs: log throughput, float64 [num_strategies, num_rounds], NaN for a run that is missing.
    """
    table = logs - numpy.nanmean(logs, axis=0)
    table = table - numpy.nanmean(table, axis=1, keepdims=True)
    sd = numpy.nanstd(table, axis=1, keepdims=True)
    table = numpy.nan_to_num(numpy.divide(table, sd, out=numpy.zeros_like(table), where=sd > SMALLEST_SD))
    products, orders = table.T @ table, _orders(logs.shape[1])
    sums = products[orders[:, :-1], orders[:, 1:]].sum(axis=1)
    return float(numpy.mean(sums >= sums[0] - 1e-9))


def rounds_follow_one_another(logs: numpy.ndarray) -> bool:
    """Whether that is so at LEVEL; not of a table that is all equal. logs: as of order_p_value."""
    return order_p_value(logs) < LEVEL
