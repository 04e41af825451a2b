"""The A/B rule: when it looks, when it stops, and what it says then. Error rates are in test_simulations.py."""

import math

import pytest
from scipy.special import stdtrit

from scripts.studies.ab.sequential import FIRST_LOOK, MAX_ROUNDS, critical_values_of_looks, look_at_rounds


def test_limits_fall_and_spend_what_they_may():
    found = critical_values_of_looks(MAX_ROUNDS)
    assert [*found] == [*range(FIRST_LOOK, MAX_ROUNDS + 1)]
    assert [*found.values()] == sorted(found.values(), reverse=True)
    # the first look spends 0.05 (4 / 20)^2 by itself: Student's t with 3 degrees of freedom
    assert found[FIRST_LOOK] == pytest.approx(stdtrit(3, 1 - 0.05 * 0.04 / 2), rel=0.03)
    assert found[MAX_ROUNDS] > stdtrit(MAX_ROUNDS - 1, 0.975)
    assert critical_values_of_looks(3)[3] == pytest.approx(
        stdtrit(2, 0.975), rel=0.02
    )  # one look: an ordinary interval


def test_a_clear_answer_ends_it_and_the_interval_is_by_hand():
    logs = [-0.30, -0.32, -0.31, -0.29]
    assert all(look_at_rounds(logs[:rounds]).more for rounds in range(4))
    step = look_at_rounds(logs)
    assert not step.more and step.estimate.verdict == "slower"
    half = critical_values_of_looks(MAX_ROUNDS)[4] * math.sqrt(
        5e-4 / 3 / 4
    )  # squares from the mean: 2.25 + 2.25 + 0.25 + 0.25 e-4
    assert math.log(step.estimate.high) == pytest.approx(-0.305 + half)


def test_an_unclear_one_goes_on_to_the_end_and_no_further():
    logs = [0.03, -0.04, 0.02, -0.01] * 5
    assert [look_at_rounds(logs[:rounds]).more for rounds in range(MAX_ROUNDS + 1)] == [True] * MAX_ROUNDS + [False]
    assert look_at_rounds(logs).estimate.verdict == "no difference seen"
    assert look_at_rounds(logs[:9]).estimate.low < 1 < look_at_rounds(logs[:9]).estimate.high  # a stop for want of time
    with pytest.raises(ValueError, match="21 rounds"):
        look_at_rounds([*logs, 0.0])


def test_one_round_and_constant_throughput_have_no_verdict():
    assert not look_at_rounds([0.1], most=1).more and "one run" in look_at_rounds([0.1], most=1).estimate.why
    step = look_at_rounds([0.1] * MAX_ROUNDS)
    assert not step.more and step.estimate.verdict == "no verdict" and "same throughput" in step.estimate.why


def test_the_question_may_be_a_limit():
    logs = [-0.02, -0.01, -0.015, -0.01, -0.02, -0.015]  # slower by 1.5 %: not the same, and not by more than 5 %
    assert look_at_rounds(logs).estimate.verdict == "slower"
    step = look_at_rounds(logs, limit=0.05)
    assert not step.more and step.estimate.low > 0.95
    on_it = [math.log(0.95) + each for each in (0.01, -0.01, 0.02, -0.02)]
    assert look_at_rounds(on_it, limit=0.05).more
