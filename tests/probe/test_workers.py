"""How many cores a device needs: from the curve, by its own numbers, and said to be worked out where it is.

.venv/bin/python -m pytest tests/probe/test_workers.py
"""

import pytest

from benchmarks.common.config import Config
from benchmarks.common.listing import list_images
from scripts.analysis.stats import Estimate
from scripts.probe.workers import cores_for, need, sample


def curve(**rates) -> dict[int, Estimate]:
    return {int(number[1:]): Estimate(rate, None, None, 1, 3) for number, rate in rates.items()}


def test_cores_follow_the_curve_and_beyond_it_its_last_point():
    """Protects advice from hope: workers that share a memory or a cache do not add up, and the curve knows."""
    measured = curve(n1=1000.0, n2=1800.0, n4=2400.0)
    assert cores_for(measured, 500) == 0.5
    assert cores_for(measured, 1800) == 2
    assert cores_for(measured, 2100) == 3
    assert cores_for(measured, 6000) == pytest.approx(10)  # 600 a core, as with 4
    assert "needs 10 cores" in need(measured, 6000) and "beyond the 4 measured here" in need(measured, 6000)
    assert "needs 3 cores" in need(measured, 2100) and "beyond" not in need(measured, 2100)


def test_a_sample_is_links_to_images_of_train(tiny_data, tmp_path):
    data = sample(Config(data=str(tiny_data)), tmp_path)
    assert len(list_images(data / "train")) == 40 and len(list_images(data / "val")) == 1
    assert {path.resolve().parents[1] for path in (data / "train" / "images").iterdir()} == {tiny_data / "train"}
