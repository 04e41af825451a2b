"""Intervals of a speed and of ratios: by hand, by scipy, and in every odd shape of a set.

.venv/bin/python -m pytest tests/results/test_intervals.py
"""

import math

import numpy
import pytest
import scipy.stats

from scripts.results.intervals import (
    precise_enough,
    ratios_to_baseline,
    sidak_critical_value,
    strategy_throughput,
)

NAMES = ("single", "ddp", "slurm", "amp")


def noise(counts=(6, 6, 6, 6), sd=0.05, seed=0):
    rng = numpy.random.default_rng(seed)
    return {name: dict(enumerate(sd * rng.normal(size=num))) for name, num in zip(NAMES, counts, strict=False)}


def ends(ratio):
    return [math.log(ratio.low), math.log(ratio.high)]


def by_scipy(logs, of, to, num_comparisons):
    both = sorted(logs[of].keys() & logs[to].keys())
    result = scipy.stats.ttest_rel([logs[of][key] for key in both], [logs[to][key] for key in both])
    return pytest.approx([*result.confidence_interval(0.95 ** (1 / num_comparisons))])


def test_an_interval_is_scipys_paired_t_at_sidaks_level():
    logs = noise()
    logs["amp"] = {key: 4 * log for key, log in reversed(logs["amp"].items())}
    for of, ratio in ratios_to_baseline("single", logs).items():
        assert ends(ratio) == by_scipy(logs, of, "single", 3)
    assert sidak_critical_value(2, 7) == pytest.approx(scipy.stats.t.ppf(1 - 0.0253206 / 2, 7), rel=1e-5)


def test_a_round_that_one_lacks_is_left_out_of_its_pairs_only():
    logs = noise((8, 8, 8))
    del logs["ddp"][0], logs["ddp"][1]
    over = ratios_to_baseline("single", logs)
    assert (over["ddp"].num_rounds, over["slurm"].num_rounds) == (6, 8)
    assert ends(over["ddp"]) == by_scipy(logs, "ddp", "single", 2)


@pytest.mark.parametrize(
    ("num_rounds", "has_interval", "verdict"),
    [(2, False, "too few rounds"), (3, True, "too few rounds"), (4, True, "too few rounds"), (5, True, "faster")],
)
def test_intervals_come_from_three_rounds_and_sentences_from_five(num_rounds, has_interval, verdict):
    logs = noise((num_rounds, num_rounds), sd=0.01)
    logs["ddp"] = {key: log + 1 for key, log in logs["ddp"].items()}
    ratio = ratios_to_baseline("single", logs)["ddp"]
    assert (ratio.low is not None, ratio.verdict) == (has_interval, verdict)
    turned = ratio.inverse()
    assert turned.value == pytest.approx(1 / ratio.value) and turned.verdict == verdict.replace("faster", "slower")


def test_a_pair_without_a_common_round_has_a_ratio_and_no_share_of_the_5_percent():
    """As of another session."""
    logs = noise()
    later = logs | {"ddp": {("later", key): log for key, log in logs["ddp"].items()}}
    over = ratios_to_baseline("single", later)
    assert (over["ddp"].num_rounds, over["ddp"].low) == (0, None)
    assert ends(over["amp"]) == by_scipy(logs, "amp", "single", 2)


def test_a_strategys_speed_is_the_geometric_mean_of_images_over_seconds():
    # The mean of the first run's rates would be 55. Logs 0, 0.1, 0.2: half width 4.3027 x 0.1 / sqrt 3 = 0.2484.
    runs = [numpy.array([[100.0, 1.0], [100.0, 10.0]]), numpy.array([[100.0, 1.0]])]
    assert strategy_throughput(runs).value == pytest.approx(math.sqrt(200 / 11 * 100))
    estimate = strategy_throughput([numpy.array([[math.exp(log), 1.0]]) for log in (0, 0.1, 0.2)])
    assert ends(estimate) == pytest.approx([0.1 - 0.2484, 0.1 + 0.2484], abs=1e-4)


def test_until_looks_from_ten_rounds_on():
    def looks(sd, num_rounds):
        return precise_enough([*ratios_to_baseline("single", noise((num_rounds,) * 4, sd)).values()], 0.05)

    assert [looks(0.001, num) for num in (9, 10)] == [False, True] and not looks(0.1, 12)
    missing = ratios_to_baseline("single", noise((10, 2))).values()
    assert not precise_enough(missing, 1) and not precise_enough([], 1)
