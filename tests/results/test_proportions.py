"""Accuracies: of how many images, and whether two differ by more than chance."""

import numpy
import pytest

from scripts.results.proportions import fisher_p_value, interval_over_seeds, welch_p_value, wilson_interval


def test_wilsons_interval_of_132_images():
    # By hand at 66 of 132: z^2 = 3.8415, half = 1.96 sqrt(0.25 / 132 + 3.8415 / (4 x 132^2)) / (1 + 3.8415 / 132)
    assert wilson_interval(66, 132) == pytest.approx((0.4159, 0.5841), abs=1e-4)  # +-8.4 points
    low, high = wilson_interval(0, 132)
    assert low == 0 and high == pytest.approx(3.8415 / (132 + 3.8415), abs=1e-4)
    with pytest.raises(ValueError):
        wilson_interval(133, 132)


def test_53_8_against_45_5_percent_may_be_chance():
    assert fisher_p_value((71, 132), (60, 132)) == pytest.approx(0.22, abs=0.005)
    assert fisher_p_value((120, 132), (60, 132)) < 1e-12
    assert fisher_p_value((5, 132), (5, 132)) == pytest.approx(1)


def test_several_seeds_have_two_sources_of_chance():
    # By hand, at 0.4, 0.5, 0.6 of 100 images: s^2 / n = 1/300, p (1 - p) / N = 1/400, 2 x (1.75)^2 = 6.125 degrees of
    # freedom, t = 2.434, 42.86 effective images: the middle stays 0.5, half the width is 0.1740
    assert interval_over_seeds([0.4, 0.5, 0.6], 100) == pytest.approx((0.3260, 0.6740), abs=5e-4)
    same = interval_over_seeds([0.5, 0.5, 0.5], 132)
    assert same == pytest.approx(wilson_interval(66, 132), abs=1e-3), "more seeds see no other images"
    assert interval_over_seeds([0.0, 0.0], 50)[0] == 0 and interval_over_seeds([0.0, 0.0], 50)[1] > 0.05
    assert welch_p_value([0.5, 0.5], [0.5, 0.5], 132) == pytest.approx(1)
    assert welch_p_value([0.90, 0.91], [0.40, 0.41], 132) < 1e-6
    assert welch_p_value([0.9, 0.3], [0.2, 0.6], 132) > 0.3
    assert welch_p_value([1e-170, 2e-170], [1e-170, 3e-170], 132) == pytest.approx(1)  # squares of variances underflow


@pytest.mark.parametrize("seed_sd", [0.0, 0.3, 1.0])
def test_the_interval_over_seeds_covers(seed_sd):
    """Images are shared by the seeds, some easy and some hard. Mutants: images alone, which cover
    58 % where seeds are far apart; seeds alone, 92 % where they agree."""
    rng, covered = numpy.random.default_rng(1), []
    easiness = rng.normal(size=200_000)
    truth = (1 / (1 + numpy.exp(-(easiness + seed_sd * rng.normal(size=200_000))))).mean()
    for _ in range(1000):
        logit = rng.choice(easiness, 132) + seed_sd * rng.normal(size=(3, 1))
        right = (rng.random((3, 132)) < 1 / (1 + numpy.exp(-logit))).mean(axis=1)
        low, high = interval_over_seeds(right, 132)
        covered.append(low <= truth <= high)
    assert numpy.mean(covered) >= 0.93
