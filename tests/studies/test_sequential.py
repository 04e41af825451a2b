"""The A/B rule: when it looks, when it stops, and what it says then. Error rates are in test_simulations.py."""

import dataclasses
import math

import numpy
import pytest
from scipy.special import stdtrit
from simulate import pair_carry_over

from scripts.studies.ab.sequential import (
    CORRELATED,
    FIRST_LOOK,
    MAX_ROUNDS,
    carry_over,
    lag_1_correlation,
    last_look,
    look_at_rounds,
    planned_looks,
    standard_error,
)

SLOWER = [-0.30, -0.31, -0.30, -0.29, -0.31, -0.29]


def test_looks_are_after_blocks_and_their_limits_fall():
    found = planned_looks(MAX_ROUNDS)
    assert [*found] == [*range(FIRST_LOOK, MAX_ROUNDS + 1, 2)]
    limits = [look.critical for look in found.values()]
    assert limits == sorted(limits, reverse=True) and limits[-1] > stdtrit(MAX_ROUNDS - 1, 0.975)
    assert [*planned_looks(7)] == [6, 7] and planned_looks(5) == {}
    assert all(0.2 < look.max_correlation < 0.5 for look in found.values())


def test_the_standard_error_is_that_of_as_many_rounds_as_they_are_worth():
    rng = numpy.random.default_rng(1)
    paths = rng.normal(size=(4000, 40))
    for place in range(1, 40):
        paths[:, place] = 0.5 * paths[:, place - 1] + 0.75**0.5 * paths[:, place]
    assert numpy.median(standard_error(paths)) == pytest.approx(paths.mean(axis=1).std(), rel=0.12)
    by_hand = numpy.array([0.0, 1.0, 2.0, 1.0])  # deviations -1, 0, 1, 0
    assert lag_1_correlation(by_hand) == pytest.approx(0.0)


def test_a_clear_answer_ends_it_and_the_interval_is_by_hand():
    assert all(look_at_rounds(SLOWER[:rounds]).more for rounds in range(6))
    step = look_at_rounds(SLOWER)
    assert not step.more and step.early and step.estimate.verdict == "slower"
    # squares from the mean 4e-4, correlation (0 + 0 + 0 - 1 - 1) / 4 = -0.5, which no rounds are worth more for
    assert step.correlation == pytest.approx(-0.5)
    half = planned_looks(MAX_ROUNDS)[6].critical * math.sqrt(4e-4 / 5 / 6)
    assert math.log(step.estimate.high) == pytest.approx(-0.30 + half)


def test_what_could_be_found_is_that_of_a_plan_of_as_many_rounds():
    """Protects from nearly three times the effect: the first look of twenty rounds asks for far more than the last look
    of six. Mutant: the limits of the look."""
    found = look_at_rounds(SLOWER).estimate.smallest_difference
    assert found == look_at_rounds(SLOWER, most=len(SLOWER)).estimate.smallest_difference
    assert found is not None and 2 * planned_looks(6)[6].critical < planned_looks(MAX_ROUNDS)[6].critical


def test_a_budget_that_ends_between_two_looks_keeps_the_last_one():
    """Protects what was known a round earlier: seven rounds had no verdict, where six had an interval. Mutants: a look
    after any round; a result that does not say of how many of the seven it is."""
    unclear = [0.03, -0.04, 0.02, -0.01, 0.01, -0.02, 0.04]
    assert look_at_rounds(unclear).estimate.low is None
    found = last_look(unclear)
    assert found == dataclasses.replace(look_at_rounds(unclear[:6]), num_rounds=6) and found.estimate.low is not None
    assert last_look(unclear[:5]) == look_at_rounds(unclear[:5])


def test_an_unclear_one_goes_on_to_the_end_and_no_further():
    logs = [0.03, -0.04, 0.02, -0.01] * 5
    assert [look_at_rounds(logs[:rounds]).more for rounds in range(MAX_ROUNDS + 1)] == [True] * MAX_ROUNDS + [False]
    assert look_at_rounds(logs).estimate.verdict == "no difference seen"
    assert look_at_rounds(logs[:10]).estimate.low < 1 < look_at_rounds(logs[:10]).estimate.high
    assert "first look is after 6 rounds" in look_at_rounds(logs[:9]).estimate.why
    with pytest.raises(ValueError, match="21 rounds"):
        look_at_rounds([*logs, 0.0])


def test_rounds_that_follow_one_another_have_no_verdict():
    """Mutant: the correlation is printed, and not asked."""
    wander = [0.5 + 0.1 * math.sin(number / 3) for number in range(MAX_ROUNDS)]
    step = look_at_rounds(wander)
    assert (step.more, step.estimate.verdict, step.estimate.why) == (False, "no verdict", CORRELATED)
    assert step.correlation > 0.5


def test_few_rounds_and_constant_throughput_have_no_verdict():
    assert not look_at_rounds([0.1], most=1).more and "at most 1 were planned" in look_at_rounds([0.1], 1).estimate.why
    step = look_at_rounds([0.1] * MAX_ROUNDS)
    assert not step.more and step.estimate.verdict == "no verdict" and "same throughput" in step.estimate.why


def test_the_question_may_be_a_limit():
    logs = [each / 20 for each in SLOWER]  # slower by 1.5 %: not the same, and not by more than 5 %
    assert look_at_rounds(logs).estimate.verdict == "slower"
    step = look_at_rounds(logs, limit=0.05)
    assert not step.more and step.estimate.low > 0.95
    on_it = [math.log(0.95) + each for each in (0.01, -0.01, 0.02, -0.02, 0.01, -0.01)]
    assert look_at_rounds(on_it, limit=0.05).more


@pytest.mark.parametrize("first", ["A", "B"])
def test_carry_over_is_reported_and_not_in_the_ratio(first):
    """ABBA all along: A and B follow B equally often. Mutant: a random order of each round leaves 2 % in the ratio."""
    b_first = numpy.array([[(first == "B") ^ (number % 2 == 1) for number in range(20)]])
    a, b = (rows[0] for rows in pair_carry_over(numpy.random.default_rng(2), b_first.repeat(1, axis=0)))
    quiet = [rows * 0 for rows in (a, b)]
    noise = numpy.random.default_rng(2).normal(size=(2, *b_first.shape)) * 0.04  # what pair_carry_over draws
    effect = (b - noise[1][0]) - (a - noise[0][0])
    assert effect[:-1].mean() == pytest.approx(0, abs=0.005) and quiet[0].sum() == 0
    found = carry_over(first, {"A": a, "B": b})
    assert found.value == pytest.approx(math.exp(-0.08), abs=0.03) and found.verdict == "slower"
    assert carry_over(first, {"A": [0.0], "B": [0.0]}).verdict == "no verdict"
