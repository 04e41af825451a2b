"""What the statistics promise, under noise like that of the published sets and worse: simulate.py has the models.

.venv/bin/python -m pytest tests/stats/test_simulations.py -m "not slow"

The short forms run the same functions over fewer sets, and allow for the chance in that.
"""

import numpy
import pytest
from simulate import (
    BETWEEN_RUNS,
    MODELS,
    NOISIER,
    NUM_WINDOWS,
    WITHIN_RUN,
    day_sets,
    family_errors,
    one_by_one,
    until_stops,
)

NUM = 2000
WILD = ("spikes", "bimodal runs")
SD_4 = 0.04 / float(numpy.hypot(BETWEEN_RUNS, WITHIN_RUN / NUM_WINDOWS**0.5))  # scales the noise to 4 % a run


def most_false(model: str) -> float:
    return 0.08 if model in WILD else 0.06


def least_covered(model: str) -> float:
    return 0.93 if model == "Gaussian" else 0.92


@pytest.mark.slow
@pytest.mark.parametrize("strategies, rounds", [(10, 3), (4, 5)])
@pytest.mark.parametrize("model", MODELS)
def test_a_family_errs_in_one_of_20_sets(model, strategies, rounds):
    rates = family_errors(MODELS[model], strategies, rounds, NUM)
    print(model, strategies, rounds, rates)
    assert max(rates[:2]) <= most_false(model)
    assert min(rates[2:]) >= least_covered(model)
    assert model != "Gaussian" or max(rates[2:]) <= 0.97


@pytest.mark.slow
def test_a_family_with_a_missing_run_errs_in_one_of_20_sets():
    rates = family_errors(MODELS["Gaussian"], 4, 4, NUM, missing=2)
    print(rates)
    assert max(rates[:2]) <= 0.06 and 0.93 <= min(rates[2:]) <= max(rates[2:]) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_family_covers_when_until_has_stopped_it(model):
    covered, rounds = until_stops(MODELS[model], 4, 0.07, NUM)
    print(model, covered, rounds)
    assert covered >= least_covered(model) and rounds < 20


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_two_things_in_one_sitting(model):
    """At most 6 % false verdicts, or 8; a delay of 5 % is found by 9 of 10 where the sd is 4 % and well-behaved."""
    faster, slower, _, _ = one_by_one(MODELS[model], 0.0, NUM, SD_4)
    late = one_by_one(MODELS[model], -0.05, NUM // 4, SD_4)
    print(model, faster + slower, late)
    assert faster + slower <= most_false(model)
    assert late[0] <= 0.01 and (model not in ("Gaussian", "drift") or late[1] >= 0.9)


@pytest.mark.slow
@pytest.mark.parametrize("num_sets", [None, 3, 5])
@pytest.mark.parametrize("strategies, rounds", [(1, 3), (1, 10), (9, 3), (9, 10)])
def test_equal_sets_of_two_days_are_called_different_in_6_percent_at_most(strategies, rounds, num_sets):
    assert day_sets(strategies, rounds, NUM // (1 if strategies == 1 else 4), 0.02, num_sets) <= 0.06


# --- short forms: 250 sets; 5 % and three standard errors are 9 % --------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_family_errs_seldom(model):
    # Mutants that this finds: one comparison's critical value for all, windows' spread for that of runs.
    rates = family_errors(MODELS[model], 6, 3, 250)
    assert max(rates[:2]) <= 0.09 and min(rates[2:]) >= 0.91


@pytest.mark.parametrize("model, least", [("one noisy", 0.06), ("noisy baseline", 0.13)])
def test_three_rounds_do_not_see_that_one_strategy_is_noisier(model, least):
    """What scripts/stats/README.md admits: the promise is broken at 3 rounds, and nearly kept at 10."""
    assert family_errors(NOISIER[model], 10, 3, 250)[0] >= least
    assert family_errors(NOISIER[model], 10, 10, 250)[0] <= 0.09


def test_rounds_as_blocks_narrow_what_drifts():
    """Not a matter of coverage alone: without blocks drift makes intervals of 99 %."""
    rates = family_errors(MODELS["drift"], 6, 3, 500)
    assert max(rates[2:]) <= 0.985


def test_until_does_not_stop_at_luck():
    # With a first look at 3 rounds and no second one it covers 91.5 %, in 250 sets of 2 strategies about 230.
    covered, rounds = until_stops(MODELS["Gaussian"], 2, 0.07, 250)
    assert covered >= 0.91 and rounds > 7


def test_looking_often_does_not_cry_wolf():
    # With ordinary intervals at each look 21 % are false.
    faster, slower, _, rounds = one_by_one(MODELS["Gaussian"], 0.0, 250, SD_4)
    assert faster + slower <= 0.09 and rounds > 18
    _, found, _, rounds = one_by_one(MODELS["Gaussian"], -0.3, 20, SD_4)
    assert found == 1 and rounds < 7


def test_slower_by_more_than_the_limit_is_another_question():
    """FAIL_OVER=5%: a delay of exactly that fails in 1 of 20 at most, one of 12 % does, and equal things end early."""
    assert one_by_one(MODELS["Gaussian"], -0.05, 150, SD_4, limit=0.05)[2] <= 0.09
    assert one_by_one(MODELS["Gaussian"], -0.12, 20, SD_4, limit=0.05)[2] == 1
    assert one_by_one(MODELS["Gaussian"], 0.0, 40, SD_4, limit=0.05)[3] < 16


def test_two_days_are_not_called_different():
    # Without the day 10 repeats call 26 % different.
    assert day_sets(1, 10, 300, 0.02, None) <= 0.09
    assert day_sets(1, 10, 300, 0.02, 3) <= 0.09
