"""Accuracies: of how many images, and whether two differ by more than chance."""

import pytest

from scripts.analysis.proportions import differ, wilson


def test_wilsons_interval_of_132_images():
    # By hand at 66 of 132: z^2 = 3.8415, half = 1.96 sqrt(0.25 / 132 + 3.8415 / (4 x 132^2)) / (1 + 3.8415 / 132)
    assert wilson(66, 132) == pytest.approx((0.4159, 0.5841), abs=1e-4)  # +-8.4 points
    low, high = wilson(0, 132)
    assert low == 0 and high == pytest.approx(3.8415 / (132 + 3.8415), abs=1e-4)
    with pytest.raises(ValueError):
        wilson(133, 132)


def test_53_8_against_45_5_percent_may_be_chance():
    assert differ((71, 132), (60, 132)) == pytest.approx(0.22, abs=0.005)
    assert differ((120, 132), (60, 132)) < 1e-12
    assert differ((5, 132), (5, 132)) == pytest.approx(1)
