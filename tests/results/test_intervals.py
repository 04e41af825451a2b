"""Error rates of the interval and the verdict, false alarms and misses, on seeded noise."""

import math

import numpy
import pytest
from support import recorded

from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows
from scripts.results.intervals import log_throughput, ratio_of_rounds, run_interval, strategy_throughput
from scripts.results.result_set import load_set

# sd of log throughput of the first published set (simulate.measured_noise), a steady day. Not read from what is
# published now: power is of a noise, and a noisier day's set must not fail the code.
BETWEEN_RUNS, WITHIN_RUN = 0.036, 0.046


def noisy_runs(rng, images_per_s, num_runs=3, num_windows=5):
    """Runs of windows with both kinds of noise, each with Student's heavy tails (4 and 3 degrees of freedom)."""
    runs = []
    for _ in range(num_runs):
        run = BETWEEN_RUNS * rng.standard_t(4) / math.sqrt(2)
        windows = WITHIN_RUN * rng.standard_t(3, num_windows) / math.sqrt(3)
        seconds = 224 / (images_per_s * numpy.exp(run + windows))
        runs.append(numpy.column_stack([numpy.full(num_windows, 224.0), seconds]))
    return runs


def throughput_ratio(of, to):
    return ratio_of_rounds(log_throughput(of) - log_throughput(to))


def test_one_sample_has_no_interval_and_constant_throughput_none():
    one, constant = [numpy.array([[32.0, 1.0], [32.0, 1.1]])], [numpy.array([[100.0, 1.0]])] * 3
    assert strategy_throughput(one).low is None and strategy_throughput(constant).low is None
    assert run_interval([(32, 1.0)]).low is None


def test_equal_strategies_in_paired_rounds_are_called_different_in_5_percent():
    # A slow spell hits both runs of a round: pairs must use that, and not be fooled by it.
    rng = numpy.random.default_rng(8)
    verdicts = []
    for _ in range(1000):
        spells = numpy.exp(0.2 * rng.normal(size=5))
        pair = [[run * [1, spell] for run, spell in zip(noisy_runs(rng, 100, 5), spells, strict=True)] for _ in "ab"]
        verdicts.append(throughput_ratio(*pair).verdict)
    assert verdicts.count("no difference seen") >= 936


def test_a_slowdown_of_10_percent_is_found_with_5_repeats():
    rng = numpy.random.default_rng(9)
    found = [throughput_ratio(noisy_runs(rng, 90, 5), noisy_runs(rng, 100, 5)).verdict for _ in range(40)]
    assert found.count("slower") >= 24  # 5 rounds; ten find it in 98 of 100
    assert found.count("faster") == 0


def test_the_interval_holds_the_true_throughput_and_is_not_absurdly_wide():
    rng = numpy.random.default_rng(10)
    estimates = [strategy_throughput(noisy_runs(rng, 100, 5)) for _ in range(60)]
    assert sum(each.low < 100 < each.high for each in estimates) >= 56
    assert numpy.median([each.high / each.low for each in estimates]) < 1.15


def test_a_runs_throughput_is_images_over_seconds_and_a_strategys_the_geometric_mean():
    # The mean of the first run's rates would be 55.
    runs = [numpy.array([[100.0, 1.0], [100.0, 10.0]]), numpy.array([[100.0, 1.0]])]
    estimate = strategy_throughput(runs)
    assert strategy_throughput(runs[:1]).value == pytest.approx(200 / 11) == run_interval(runs[0]).value
    assert estimate.value == pytest.approx(math.sqrt(200 / 11 * 100))
    assert (estimate.num_runs, estimate.num_windows) == (2, 3)


def test_an_interval_by_itself_covers_95_percent_and_not_99():
    # The windows' noise is in the runs' spread already: counted twice it once covered 99.6 %.
    rng = numpy.random.default_rng(13)
    estimates = [strategy_throughput(noisy_runs(rng, 100)) for _ in range(1500)]
    assert 0.93 <= numpy.mean([each.low < 100 < each.high for each in estimates]) <= 0.975


def test_the_interval_by_hand():
    # Logs 0, 0.1 and 0.2: sd 0.1, t with 2 degrees of freedom 4.3027, half width 4.3027 x 0.1 / sqrt 3 = 0.2484.
    runs = [numpy.array([[math.exp(log), 1.0]]) for log in (0, 0.1, 0.2)]
    estimate = strategy_throughput(runs)
    assert [math.log(each) for each in (estimate.low, estimate.high)] == pytest.approx(
        [0.1 - 0.2484, 0.1 + 0.2484], abs=1e-4
    )
    assert run_interval([(math.exp(log), 1.0) for log in (0, 0.1, 0.2)]).num_windows == 3


def test_the_inverse_says_the_same_the_other_way_round():
    rng = numpy.random.default_rng(14)
    over = throughput_ratio(noisy_runs(rng, 200, 5), noisy_runs(rng, 100, 5))
    under = over.inverse()
    assert (over.verdict, under.verdict) == ("faster", "slower") and under.low < under.value < under.high < 1
    assert under.inverse().high == pytest.approx(over.high)


def test_run_interval_is_over_the_windows_of_one_run():
    estimate = run_interval([(100, 1.0), (100, 1.1), (100, 0.9), (100, 1.0)])
    assert (estimate.num_runs, estimate.num_windows) == (1, 4)
    assert 80 < estimate.low < 100 < estimate.high < 125


def test_the_smallest_difference_is_found_by_80_in_100():
    # Not the half-width, which is found in half of all cases only. Each side has 5 runs of one window, sd 5 %.
    rng = numpy.random.default_rng(12)

    def runs(speed):
        return [numpy.array([[speed * math.exp(0.05 * each), 1.0]]) for each in rng.normal(size=5)]

    wide = numpy.median([throughput_ratio(runs(1.0), runs(1.0)).smallest_difference for _ in range(200)])
    found = [throughput_ratio(runs(1 + wide), runs(1.0)).verdict == "faster" for _ in range(1000)]
    assert 0.72 <= numpy.mean(found) <= 0.88


def test_a_set_groups_runs_and_keeps_unlike_settings_apart(tmp_path):
    # Pooling batches of 32 and 64 under one name would be a lie; skipped rows lack most settings.
    same = {"strategy": "ddp", "status": "ok", "world_size": 2, "arch": "resnet18"}
    rows = [
        {"run_id": "a", "repeat": 1, "strategy": "single", "status": "ok", "images_per_s": 90.0},
        {"run_id": "b", "repeat": 1, **same, "global_batch": 32},
        {"run_id": "c", "repeat": 1, **same, "global_batch": 64},
        {"run_id": "d", "repeat": 1, "strategy": "slurm", "status": "skipped", "reason": "no cluster"},
    ]
    append_rows(tmp_path, "runs", [recorded(tmp_path, row) for row in rows])
    append_rows(
        tmp_path,
        "windows",
        [
            {"run_id": "b", "window": 0, "images": 320, "seconds": 2.0},
            {"run_id": "c", "window": 0, "images": 640, "seconds": 2.0},
            {"run_id": "c", "window": 1, "images": 640, "seconds": 0.0},
        ],
    )
    groups = {group.label: group for group in load_set(tmp_path).groups}
    assert list(groups) == ["single", "ddp, global_batch 32", "ddp, global_batch 64", "slurm"]
    assert groups["single"].throughput.value == pytest.approx(90)  # without windows
    assert groups["ddp, global_batch 64"].throughput.value == pytest.approx(320)  # the impossible window is out
    assert groups["slurm"].throughput is None and groups["slurm"].status_counts == {"skipped": 1}


def test_a_missing_set_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match=r"\./bench run"):
        load_set(tmp_path / "nowhere")
