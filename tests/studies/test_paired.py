"""A and B in turn: their order, when B is called slower, and how many rounds a difference needs."""

import numpy
import pytest

from scripts.studies.paired import is_slower, order_of_round, ratio_of_speeds, rounds_needed


def test_two_rounds_are_a_block_that_cancels_a_drift():
    """A machine that gets slower from run to run, and a run that is slower after B, are no difference."""
    for first, order in (("A", ["BA", "AB", "BA", "AB", "BA"]), ("B", ["AB", "BA", "AB", "BA", "AB"])):
        assert [order_of_round(first, number) for number in range(5)] == order
    speeds: dict[str, list[float]] = {"A": [], "B": []}
    runs = [name for number in range(1, 11) for name in order_of_round("A", number)]
    for place, name in enumerate(runs):
        speeds[name].append(100 * numpy.exp(-0.01 * place))
    assert ratio_of_speeds(speeds["A"], speeds["B"]).value == pytest.approx(1)


def test_b_is_slower_by_its_whole_interval_from_five_rounds():
    a, b = [100.0, 101.0, 99.0, 100.0, 102.0], [90.0, 92.0, 89.0, 91.0, 92.0]
    ratio = ratio_of_speeds(a, b)
    assert ratio.verdict == "slower" and 0.88 < ratio.low < ratio.value < ratio.high < 0.92
    assert [is_slower(ratio, 5, limit) for limit in (0.05, 0.095, 0.2)] == [True, None, False]
    assert is_slower(ratio, 4, 0.05) is None


def test_the_rounds_that_it_names_find_the_difference():
    """As many rounds find 5 % in about 80 of 100 simulated comparisons, and half as many in far fewer."""
    rng, sd = numpy.random.default_rng(0), 0.04
    needed = rounds_needed(0.05, sd)

    def found(num_rounds: int) -> float:
        b = numpy.exp(numpy.log(1.05) + sd * rng.normal(size=(500, num_rounds)))
        return float(numpy.mean([ratio_of_speeds([1.0] * num_rounds, each).verdict == "faster" for each in b]))

    assert needed is not None and 0.75 < found(needed) < 0.9 and found(needed // 2 + 1) < 0.65
    assert rounds_needed(0.02, sd) > needed > rounds_needed(0.10, sd) and rounds_needed(0.02, 10.0) is None
