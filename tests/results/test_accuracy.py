"""How sure an accuracy is: repeats of one seed tell of one seed, and images are few.

.venv/bin/python -m pytest tests/results/test_accuracy.py
"""

import numpy
import pytest
import scipy.stats
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.results.accuracy import describe_top1, interval_over_seeds, top1_accuracy
from scripts.results.result_set import load_set


def add_runs(folder, strategy, num_correct_of_runs, asked=None, **columns):
    """A run for each number of right images, of rounds that take the seeds in `asked` in turn, if any."""
    for repeat, num_correct in enumerate(num_correct_of_runs, 1):
        row = {"run_id": f"{strategy}-{repeat}", "strategy": strategy, "status": "ok", "repeat": repeat}
        row |= {"acc1": 100 * num_correct / 132, "val_samples": 132, "image_size": 48} | columns
        append_rows(folder, "runs", [recorded(folder, row, **(asked or {}))])


def test_repeats_of_one_seed_are_one_seed(tmp_path):
    """Protects n on GPUs, whose repeats of one seed differ in the last bits. Mutant: counts results."""
    add_runs(tmp_path, "single", [60, 60, 61, 59])
    (group,) = load_set(tmp_path).groups
    found = top1_accuracy(group)
    assert (found.num_seeds, found.num_runs) == (1, 4) and found.text == "45.5 [37.2, 54.0]"
    assert describe_top1([group]) == "Top-1: n = 1 seed; [low, high]: 95 %, of the images."


def test_several_seeds_widen_the_interval(tmp_path):
    """Mutant: Wilson's interval of the mean, which seeds far apart leave as it is."""
    add_runs(tmp_path, "single", [50, 70, 90, 50], {"seeds": [0, 1, 2]})  # the fourth has the first's seed
    (group,) = load_set(tmp_path).groups
    found = top1_accuracy(group)
    assert found.percent == pytest.approx(100 * 70 / 132) and found.num_seeds == 3
    assert found.high - found.low > 1.5 * 100 * numpy.diff(interval_over_seeds([70 / 132], 132))[0]


@pytest.mark.parametrize(("columns", "text"), [({"val_samples": ""}, "45.5"), ({"acc1": ""}, None)])
def test_what_is_unknown_has_no_interval_or_no_accuracy(tmp_path, columns, text):
    add_runs(tmp_path, "single", [60], **columns)
    (group,) = load_set(tmp_path).groups
    found = top1_accuracy(group)
    assert (found and found.text) == text and describe_top1([group]) == ""


def test_one_seed_has_wilsons_interval():
    wilson = scipy.stats.binomtest(66, 132).proportion_ci(method="wilson")
    assert interval_over_seeds([0.5], 132) == pytest.approx((wilson.low, wilson.high))
    assert interval_over_seeds([0.5, 0.5, 0.5], 132) == pytest.approx((wilson.low, wilson.high), abs=1e-3)
    assert interval_over_seeds([0.0], 50)[0] == 0


@pytest.mark.parametrize("seed_sd", [0.0, 1.0])
def test_the_interval_over_seeds_covers(seed_sd):
    """Images are shared by the seeds, some easy and some hard. Mutants: images alone, which cover 58 % where seeds are
    far apart; seeds alone, 92 % where they agree."""
    rng, covered = numpy.random.default_rng(1), []
    easiness = rng.normal(size=200_000)
    truth = (1 / (1 + numpy.exp(-(easiness + seed_sd * rng.normal(size=200_000))))).mean()
    for _ in range(1000):
        logit = rng.choice(easiness, 132) + seed_sd * rng.normal(size=(3, 1))
        right = (rng.random((3, 132)) < 1 / (1 + numpy.exp(-logit))).mean(axis=1)
        low, high = interval_over_seeds(right, 132)
        covered.append(low <= truth <= high)
    assert numpy.mean(covered) >= 0.93
