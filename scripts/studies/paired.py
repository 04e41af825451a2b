"""A and B in turn, in one session: their order, whether B is slower, and how many rounds a difference needs.

Two rounds are a block, A B B A or B A A B by chance: a steady drift cancels, and what a run leaves behind for the next.
Needs no torch.
"""

import math
from collections.abc import Sequence

import numpy
from scipy.special import nctdtrinc

from scripts.results.intervals import SENTENCE_ROUNDS, RatioEstimate, ratio_of_rounds, sidak_critical_value

POWER = 0.8
DIFFERENCES = (0.02, 0.05, 0.10)
ROUNDS_LIMIT = 1000


def order_of_round(first: str, round_number: int) -> str:
    """AB or BA. first: of round 1. Round 0 warms up: its last is the first of round 1."""
    pair = first + "AB".replace(first, "")
    return pair if round_number % 2 else pair[::-1]


def ratio_of_speeds(a: Sequence[float], b: Sequence[float]) -> RatioEstimate:
    """B over A, of speeds of the same rounds."""
    return ratio_of_rounds(numpy.log(b) - numpy.log(a))


def is_slower(ratio: RatioEstimate, num_rounds: int, limit: float) -> bool | None:
    """Whether B is slower by more than `limit`, such as 0.05, by the whole interval of B over A; None: undecided."""
    if num_rounds < SENTENCE_ROUNDS or ratio.low is None or ratio.high is None:
        return None
    if ratio.high < 1 - limit:
        return True
    return None if ratio.low < 1 - limit else False


def rounds_needed(difference: float, sd: float, num_comparisons: int = 1) -> int | None:
    """Fewest rounds that find a difference, such as 0.05, with 80 % power; None beyond ROUNDS_LIMIT. sd: of a round's
    log ratio."""
    largest = math.log1p(difference) / sd if sd else math.inf
    for rounds in range(SENTENCE_ROUNDS, ROUNDS_LIMIT + 1):
        critical = sidak_critical_value(num_comparisons, rounds - 1)
        if float(nctdtrinc(rounds - 1, 1 - POWER, critical)) / math.sqrt(rounds) <= largest:
            return rounds
    return None


def describe_rounds_needed(sd: float, num_comparisons: int = 1) -> str:
    """rounds needed to find 2 %: 31, 5 %: 7, 10 %: 5"""
    needed = {each: rounds_needed(each, sd, num_comparisons) for each in DIFFERENCES}
    texts = [f"{100 * each:.0f} %: {rounds or f'over {ROUNDS_LIMIT}'}" for each, rounds in needed.items()]
    return f"rounds needed to find {', '.join(texts)} (with 80 % power, were the spread always this one)"
