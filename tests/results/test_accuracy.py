"""How sure an accuracy is: repeats of one seed tell of one seed, and images are few.

.venv/bin/python -m pytest tests/results/test_accuracy.py
"""

import numpy
import pytest
import scipy.stats
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.results.accuracy import interval_over_seeds, top1_accuracy
from scripts.results.result_set import load_set


def test_repeats_of_one_seed_are_one_seed(tmp_path):
    """On GPUs repeats of one seed differ in the last bits."""
    for repeat, num_correct in enumerate((60, 60, 61, 59), 1):
        row = {"run_id": f"single-{repeat}", "strategy": "single", "status": "ok", "repeat": repeat}
        row |= {"acc1": 100 * num_correct / 132, "val_samples": 132}
        append_rows(tmp_path, "runs", [recorded(tmp_path, row)])
    (group,) = load_set(tmp_path).groups
    found = top1_accuracy(group)
    assert (found.num_seeds, found.text) == (1, "45.5 [37.2, 54.0]")


def test_one_seed_has_wilsons_interval():
    wilson = scipy.stats.binomtest(66, 132).proportion_ci(method="wilson")
    assert interval_over_seeds([0.5], 132) == pytest.approx((wilson.low, wilson.high))
    assert interval_over_seeds([0.5, 0.5, 0.5], 132) == pytest.approx((wilson.low, wilson.high), abs=1e-3)
    assert interval_over_seeds([0.0], 50)[0] == 0


@pytest.mark.parametrize("seed_sd", [0.0, 1.0])
def test_the_interval_over_seeds_covers(seed_sd):
    """Images are shared by the seeds, some easy and some hard. Images alone would cover 58 % where seeds are far apart;
    seeds alone 92 % where they agree."""
    rng, covered = numpy.random.default_rng(1), []
    easiness = rng.normal(size=200_000)
    truth = (1 / (1 + numpy.exp(-(easiness + seed_sd * rng.normal(size=200_000))))).mean()
    for _ in range(1000):
        logit = rng.choice(easiness, 132) + seed_sd * rng.normal(size=(3, 1))
        right = (rng.random((3, 132)) < 1 / (1 + numpy.exp(-logit))).mean(axis=1)
        low, high = interval_over_seeds(right, 132)
        covered.append(low <= truth <= high)
    assert numpy.mean(covered) >= 0.93
