"""Two recorded sets: no verdict without the day's spread, and by hand with it."""

import math

import numpy
import pytest
from scipy.special import stdtrit

from scripts.results.families import ThroughputSample
from scripts.results.intervals import sidak_critical_value
from scripts.studies.compare.two_days import (
    DaySpread,
    day_spread,
    largest_day_sd,
    ratio_between_days,
    ratios_between_days,
)


def a_set(day: float, names=("single", "ddp"), spread=0.01) -> dict[str, ThroughputSample]:
    return {
        name: ThroughputSample(day + spread * numpy.array([-1.0, 0.0, 1.0, 0.0, 0.0]), [1.0, 2.0, 3.0, 4.0, 5.0])
        for name in names
    }


def test_without_a_days_spread_there_is_a_ratio_and_no_verdict():
    found = ratios_between_days(a_set(0.0), a_set(-0.5), None)["ddp"]
    assert found.value == pytest.approx(math.exp(-0.5))
    assert (found.verdict, found.low, found.why) == ("no verdict", None, "the day's effect is unknown")


def test_the_spread_of_days_by_hand():
    # Means 0, 0.03, 0.06: variance 9e-4. What a round does in all sets alike explains nothing of them.
    found = day_spread([a_set(0.0), a_set(0.03), a_set(0.06)])
    assert (found.sd, found.df) == (pytest.approx(0.03), 2)
    assert day_spread([a_set(0.0)] * 3).sd == 0
    with pytest.raises(ValueError, match="3 sets"):
        day_spread([a_set(0.0)] * 2)
    with pytest.raises(ValueError, match="several rounds"):
        day_spread([a_set(0.0), a_set(0.0), a_set(0.0, names=["slurm"])])


def test_what_the_runs_explain_of_the_days_by_hand():
    """The interaction of sets and rounds: squares of what the means of both leave, over (3 - 1) (2 - 1)."""
    rounds, logs = [1.0, 2.0], numpy.array([[0.01, -0.01], [0.06, 0.06], [0.0, 0.0]])
    sets = [{"ddp": ThroughputSample(each, rounds)} for each in logs]
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean()
    explained = (rest**2).sum() / 2 / 2
    assert day_spread(sets).sd == pytest.approx(math.sqrt(numpy.var([0.0, 0.06, 0.0], ddof=1) - explained))
    longer = [{"ddp": ThroughputSample(numpy.append(each, 5.0), [*rounds, 7.0])} for each in logs[:2]]
    assert day_spread([*longer, sets[2]]) == day_spread(sets), "a round that one set lacks is left out"


@pytest.mark.parametrize("names", [["ddp"], ["single", "ddp", "slurm"]])
def test_the_interval_by_hand(names):
    """The days' part is that of one comparison, whatever the number of strategies; half of the 5 % for each part."""
    b = {
        name: ThroughputSample(each.log_throughputs[[1, 0, 2, 3, 4]], each.round_numbers)
        for name, each in a_set(0.1, names).items()
    }
    sd = 0.01 * math.sqrt(2 / 4)  # of the differences +-0.01 in two rounds
    of_runs = sidak_critical_value(len(names), 4, 0.975) * sd / math.sqrt(5)
    measured = ratios_between_days(a_set(0.0, names), b, DaySpread(0.02, 2))["ddp"]
    assert math.log(measured.high) == pytest.approx(0.1 + of_runs + stdtrit(2, 0.9875) * math.sqrt(2) * 0.02)
    given = ratios_between_days(a_set(0.0, names), b, DaySpread(0.01))["ddp"]
    assert math.log(given.low) == pytest.approx(0.1 - of_runs - stdtrit(1e9, 0.9875) * math.sqrt(2) * 0.01, abs=1e-6)
    assert measured.verdict == "no difference seen" and given.verdict == "faster"


@pytest.mark.parametrize("num_day_pairs", [1, 3])
def test_the_largest_spread_that_leaves_a_ratio_out(num_day_pairs):
    """Protects the sentence on what would decide: at that spread the interval ends at the ratio. Mutants: one pair of
    days for three sets; the absolute distance, by which a faster one is slower as well."""
    a = a_set(0.0)["ddp"]
    b = ThroughputSample(a.log_throughputs[[1, 0, 2, 3, 4]] + 0.1, a.round_numbers)
    sd = largest_day_sd(a, b, 1.3, 4, num_day_pairs)
    assert ratio_between_days(a, b, DaySpread(sd), 4, num_day_pairs).high == pytest.approx(1.3)
    assert largest_day_sd(a, b, 1.1, 4, num_day_pairs) is None, "0.1 is log 1.105"
    assert largest_day_sd(a, b, 1.11, 4, num_day_pairs) is None, "the runs' own part"
    few = ThroughputSample(numpy.zeros(3), [1.0, 2.0, 3.0])
    assert largest_day_sd(few, few, 9.0, 1) is None


def test_three_sets_are_three_pairs_of_days():
    """Protects from the level of one pair where the lowest of three is picked."""
    a, b = a_set(0.0)["ddp"], a_set(0.1)["ddp"]
    one, three = (ratio_between_days(a, b, DaySpread(0.02), 1, pairs) for pairs in (1, 3))
    wider = math.log(three.high / one.high)
    levels = [stdtrit(1e9, (1 + 0.975 ** (1 / pairs)) / 2) for pairs in (1, 3)]
    assert wider == pytest.approx((levels[1] - levels[0]) * math.sqrt(2) * 0.02)
