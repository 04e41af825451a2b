"""./bench study predict-check's arithmetic: what goes into a prediction, what may not, and how an error is counted.

.venv/bin/python -m pytest tests/studies/test_prediction_error.py
"""

import numpy
import pandas
import pytest

from benchmarks.common.system.errors import UserError
from scripts.studies.allreduce.links import Link, ring
from scripts.studies.allreduce.uncertain_value import PERCENTILES
from scripts.studies.predict.prediction_error import (
    ALONE,
    NUM_RESAMPLES,
    SIDE_BY_SIDE,
    bootstrap_interval,
    compare_with_measured,
    measured_slowdown,
    predict_cases,
    summarize_errors,
)

MB = 10**6
LINK = Link(1e-4, 1e9)
SIZES = [2**10, 2**16, 2**20, 2**24, 2**26]
CASE = {"arch": "resnet18", "image_size": 48, "strategy": "ddp"}


def write_inputs(folder, ready=1.0, **case):
    """A step of 100 ms alone and of 120 beside another, whose later rank is 5 ms later than the mean; 40 MB of
    gradients, all at once. ready: when, as a fraction of the backward pass."""
    case = CASE | case
    alone = [case | {"what": ALONE, "round": r, "rank": 0, "step": s, "ms": 100.0} for r in range(3) for s in range(4)]
    alone += [
        case | {"what": SIDE_BY_SIDE, "round": r, "rank": rank, "step": s, "ms": 120 + (5 if (rank + s) % 2 else -5)}
        for r in range(3) for s in range(4) for rank in range(2)
    ]  # fmt: skip
    exchange = []
    for path, scale in (("gloo", 1.0), ("gloo, bf16", 2.0)):
        for number in range(3):
            for size in SIZES:
                seconds = scale * ring(size, 2, LINK)
                row = {"path": path, "round": number, "ranks": 2, "bytes": size, "seconds": seconds}
                exchange.append(case | row | {"cpu_s": 0.5 * seconds})
    gradient = {"name": "all", "block": "layer1.0", "num_bytes": 40 * MB, "ready": ready, "out_bytes": 0}
    gradients = [case | gradient | {"forward_s": 0.03, "backward_s": 0.05}]
    for name, rows in (("alone", alone), ("exchange", exchange), ("gradients", gradients)):
        pandas.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)


def test_a_prediction_by_hand(tmp_path):
    """120 ms beside another, 5 for the later one, and 40 MB over 1 GB/s at the end: 2 * 0.1 + 40 ms."""
    write_inputs(tmp_path)
    (row,) = predict_cases(tmp_path).to_dict("records")
    assert row["predicted_ms"] == pytest.approx(120 + 5 + 40.2, rel=1e-3)
    assert (row["alone_ms"], row["side_ms"], row["late_ms"]) == pytest.approx((100, 120, 5))
    assert row["gb_per_s"] == pytest.approx(1.0, rel=1e-3) and row["busy"] == 0.5
    assert row["plain_sum_ms"] == pytest.approx(120 + 40.2, rel=1e-3) and row["gradient_bytes"] == 40 * MB


def test_messages_between_cpu_ranks_hide_behind_nothing(tmp_path):
    """All gradients are ready after a tenth of the backward pass, and all-reduces by themselves keep half a core busy.
    The step is as long as with gradients at the end. Mutant that it catches: contention from the CPU time of
    exchange.csv."""
    write_inputs(tmp_path, ready=0.1)
    (row,) = predict_cases(tmp_path).to_dict("records")
    assert row["predicted_ms"] == pytest.approx(120 + 5 + 40.2, rel=1e-3)


def test_the_slowdown_beside_another(tmp_path):
    """120 ms of 100; a model that nobody has measured has none."""
    write_inputs(tmp_path)
    assert measured_slowdown(tmp_path, "resnet18", 48).value == pytest.approx(1.2)
    assert (
        measured_slowdown(tmp_path, "resnet50", 48) is None
        and measured_slowdown(tmp_path / "nowhere", "resnet18", 48) is None
    )


def test_compressed_gradients_take_their_own_link(tmp_path):
    """Half the bytes, by a path that takes twice as long for each: 20 MB are 2 * (0.2 + 20) ms."""
    write_inputs(tmp_path, strategy="ddp_compressed")
    (row,) = predict_cases(tmp_path).to_dict("records")
    assert row["predicted_ms"] == pytest.approx(120 + 5 + 2 * 20.2, rel=1e-3)
    assert row["plain_sum_ms"] == pytest.approx(120 + 2 * 20.2, rel=1e-3) and row["gradient_bytes"] == 20 * MB


def test_no_step_with_communication_is_read(tmp_path):
    """Protects the claim: a measured 2-rank step lies at hand, first plausible and then no CSV at all, and the
    prediction is the same to the last bit. Mutant that it catches: predict_cases that reads measured.csv."""
    write_inputs(tmp_path)
    without = predict_cases(tmp_path)
    measured = pandas.DataFrame([CASE | {"round": r, "step": s, "ms": 999.0} for r in range(3) for s in range(4)])
    measured.to_csv(tmp_path / "measured.csv", index=False)
    pandas.testing.assert_frame_equal(predict_cases(tmp_path), without, check_exact=True)
    (tmp_path / "measured.csv").write_bytes(b"\xff\x00 no table")
    pandas.testing.assert_frame_equal(predict_cases(tmp_path), without, check_exact=True)


def test_a_step_with_an_exchange_among_the_inputs_is_refused(tmp_path):
    write_inputs(tmp_path)
    rows = pandas.read_csv(tmp_path / "alone.csv")
    rows.loc[0, "what"] = "together"
    rows.to_csv(tmp_path / "alone.csv", index=False)
    with pytest.raises(UserError, match="together"):
        predict_cases(tmp_path)


def test_missing_inputs_say_what_makes_them(tmp_path):
    with pytest.raises(UserError, match=r"\./bench study predict-check"):
        predict_cases(tmp_path)


@pytest.mark.parametrize(
    ("predicted", "error"), [(100.0, 0.0), (104.0, 0.0), (110.0, 110 / 104.30265 - 1), (90.0, 90 / 95.69735 - 1)]
)
def test_an_error_is_the_distance_from_the_measured_mean(predicted, error):
    """Three windows with a standard deviation of sqrt(3) ms: the interval of their mean is 100 +- 4.30265, and `error`,
    which no verdict goes by, is counted from its nearer end."""
    rounds = enumerate((98.267949, 100.0, 101.732051))
    measured = pandas.DataFrame([CASE | {"round": r, "step": s, "ms": ms} for r, ms in rounds for s in (0, 1)])
    case = CASE | {"predicted_ms": predicted, "plain_sum_ms": 97.0}
    (row,) = compare_with_measured(pandas.DataFrame([case]), measured).to_dict("records")
    assert (row["measured_low"], row["measured_high"]) == pytest.approx((95.69735, 104.30265), abs=1e-4)
    assert row["error"] == pytest.approx(error, abs=1e-5) and row["num_rounds"] == 3
    assert (row["off"], row["plain_sum_off"]) == pytest.approx((predicted / 100 - 1, -0.03))


@pytest.mark.parametrize(
    ("errors", "good"), [([0.05, -0.19, 0.0], True), ([0.05, -0.21, 0.0], False), ([0.11, -0.12, 0.0], False)]
)
def test_the_verdict_goes_by_the_median_and_the_largest(errors, good):
    bounds = {"measured_ms": [100.0, 89.0, 121.0], "predicted_low": 90.0, "predicted_high": 120.0}
    found, text = summarize_errors(pandas.DataFrame({"error": 0.0, "off": errors, "plain_sum_off": 0.06} | bounds))
    assert f"biased by {100 * numpy.mean(errors):+.1f} %" in text, "a wide interval makes `error` 0, and no error small"
    assert found is good and "interval holds the measured mean in 1 of 3" in text


def test_the_rival_is_named_with_its_own_errors():
    """Protects from a model that is further off than a plain sum and holds all the same. Mutants: the rival's errors
    without their sign; the closer one by the largest error."""
    bounds = {"measured_ms": 100.0, "predicted_low": 90.0, "predicted_high": 120.0}
    off = {"off": [-0.1, -0.1, -0.1], "plain_sum_off": [0.05, -0.04, 0.15]}
    lines = summarize_errors(pandas.DataFrame(off | bounds))[1].splitlines()
    errors = "within 15.0 % of the measured means, biased by +5.3 %; median error 5.0 %"
    assert lines[1] == f"a plain sum, with no overlap: {errors}: it is closer than the prediction"
    swapped = {"off": off["plain_sum_off"], "plain_sum_off": off["off"]}
    assert summarize_errors(pandas.DataFrame(swapped | bounds))[1].splitlines()[1].endswith(": it is not closer")


def test_an_interval_of_few_rounds_holds_what_it_should():
    """Protects from percentiles of resamples of 6 rounds, whose 95 % were 85: 1,000 sessions of normal rounds around
    100 ms. Mutant that it catches: bootstrap_interval without its widening."""
    rng, num_rounds = numpy.random.default_rng(0), 6
    held, held_by_percentiles = [], []
    for _ in range(1000):
        rounds = rng.normal(100, 5, num_rounds)
        picks = [numpy.arange(num_rounds), *rng.integers(num_rounds, size=(NUM_RESAMPLES, num_rounds))]
        found = rounds[numpy.array(picks)].mean(axis=1)
        low, high = bootstrap_interval(found, num_rounds)
        held.append(low <= 100 <= high)
        low, high = numpy.percentile(found[1:], PERCENTILES)
        held_by_percentiles.append(low <= 100 <= high)
    assert 0.93 < numpy.mean(held) < 0.97 and numpy.mean(held_by_percentiles) < 0.90
    with pytest.raises(UserError, match="2 or more"):
        bootstrap_interval(numpy.ones(3), 1)
