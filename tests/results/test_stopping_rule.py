"""The rule of UNTIL: it stops at the second width that will do, and not before FIRST_LOOK_ROUNDS."""

import numpy
from simulate import samples_of

from scripts.results.stopping_rule import precise_enough, widest_half_width

OVER_FIRST = {"1": "0", "2": "0", "3": "0"}


def test_until_waits_for_a_second_look():
    logs = 0.001 * numpy.random.default_rng(4).normal(size=(4, 12))
    looks = [precise_enough(samples_of(logs[:, :rounds]), OVER_FIRST, 0.05) for rounds in range(1, 13)]
    # the first look is after 10 rounds, the second one that will do after 11
    assert looks == [False] * 10 + [True] * 2
    assert not precise_enough(samples_of(logs * 100), OVER_FIRST, 0.05)
    wild = logs * numpy.where(numpy.arange(12) == 11, 1000, 1)  # all was narrow until the last round
    assert precise_enough(samples_of(wild[:, :11]), OVER_FIRST, 0.05)
    assert not precise_enough(samples_of(wild), OVER_FIRST, 0.05)
    assert precise_enough(samples_of(logs), {}, 0.05)
    constant = samples_of(numpy.zeros((4, 12)))
    assert not precise_enough(constant, OVER_FIRST, 0.05) and widest_half_width(constant, OVER_FIRST) is None
