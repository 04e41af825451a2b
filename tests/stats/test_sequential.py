"""The A/B rule: when it looks, when it stops, and what it says then. Error rates are in test_simulations.py."""

import math

import pytest
from scipy.special import stdtrit

from scripts.stats.sequential import FIRST_LOOK, MOST_ROUNDS, limits, next_step


def test_limits_fall_and_spend_what_they_may():
    found = limits(MOST_ROUNDS)
    assert [*found] == [*range(FIRST_LOOK, MOST_ROUNDS + 1)]
    assert [*found.values()] == sorted(found.values(), reverse=True)
    # the first look spends 0.05 (4 / 20)^2 by itself: Student's t with 3 degrees of freedom
    assert found[FIRST_LOOK] == pytest.approx(stdtrit(3, 1 - 0.05 * 0.04 / 2), rel=0.03)
    assert found[MOST_ROUNDS] > stdtrit(MOST_ROUNDS - 1, 0.975)
    assert limits(3)[3] == pytest.approx(stdtrit(2, 0.975), rel=0.02)  # one look: an ordinary interval


def test_a_clear_answer_ends_it_and_the_interval_is_by_hand():
    logs = [-0.30, -0.32, -0.31, -0.29]
    assert all(next_step(logs[:rounds]).more for rounds in range(4))
    step = next_step(logs)
    assert not step.more and step.estimate.verdict == "slower"
    half = limits(MOST_ROUNDS)[4] * math.sqrt(5e-4 / 3 / 4)  # squares from the mean: 2.25 + 2.25 + 0.25 + 0.25 e-4
    assert math.log(step.estimate.high) == pytest.approx(-0.305 + half)


def test_an_unclear_one_goes_on_to_the_end_and_no_further():
    logs = [0.03, -0.04, 0.02, -0.01] * 5
    assert [next_step(logs[:rounds]).more for rounds in range(MOST_ROUNDS + 1)] == [True] * MOST_ROUNDS + [False]
    assert next_step(logs).estimate.verdict == "no difference seen"
    assert next_step(logs[:9]).estimate.low < 1 < next_step(logs[:9]).estimate.high  # a stop for want of time
    with pytest.raises(ValueError, match="21 rounds"):
        next_step([*logs, 0.0])


def test_one_round_and_constant_throughput_have_no_verdict():
    assert not next_step([0.1], most=1).more and "one run" in next_step([0.1], most=1).estimate.why
    step = next_step([0.1] * MOST_ROUNDS)
    assert not step.more and step.estimate.verdict == "no verdict" and "same throughput" in step.estimate.why


def test_the_question_may_be_a_limit():
    logs = [-0.02, -0.01, -0.015, -0.01, -0.02, -0.015]  # slower by 1.5 %: not the same, and not by more than 5 %
    assert next_step(logs).estimate.verdict == "slower"
    step = next_step(logs, limit=0.05)
    assert not step.more and step.estimate.low > 0.95
    on_it = [math.log(0.95) + each for each in (0.01, -0.01, 0.02, -0.02)]
    assert next_step(on_it, limit=0.05).more
