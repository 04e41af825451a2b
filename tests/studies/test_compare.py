"""./bench compare: ratios within a set and between two, what is refused, the gate, and what training costs."""

from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import scipy.stats
from result_sets import write_set

from benchmarks.common.errors import UserError
from scripts.results.result_set import load_set
from scripts.studies.compare import hours_of, main, welch, within_set
from scripts.studies.options import CompareOptions

SPEEDS = {"single": 100.0, "ddp": 170.0, "fsdp": 120.0}


@pytest.fixture
def compare(capsys):
    def run(*sets, **options):
        found: dict = {}
        code = main(CompareOptions(*map(Path, sets), **options), found)
        streams = capsys.readouterr()
        return SimpleNamespace(code=code, out=streams.out, err=streams.err, found=found)

    return run


@pytest.fixture
def base(tmp_path):
    return write_set(tmp_path / "base", SPEEDS)


def of_another_day(folder, speeds, **columns):
    return write_set(folder, speeds, started_at="2026-11-23T01:00:00+00:00", **columns)


def test_within_a_set_each_pair_is_paired_by_round(compare, base):
    done = compare(base)
    titles = [each["comparison"] for each in done.found["comparisons"]]
    assert titles == ["ddp / single", "fsdp / single"] and done.found["comparisons"][0]["verdict"] == "faster"
    over_others = compare(base, strategy="fsdp").found["comparisons"]
    assert {each["comparison"]: each["verdict"] for each in over_others} == {
        "fsdp / single": "faster", "fsdp / ddp": "slower"
    }  # fmt: skip
    results = load_set(base)
    pair = within_set(results, "ddp")[0]
    assert pair.ratio == results.ratio(pair.of, pair.to)
    assert "rounds needed to find 2 %" in done.out


def test_between_sets_the_interval_is_welchs():
    rng = numpy.random.default_rng(0)
    a, b = 0.01 * rng.normal(size=5), 0.03 * rng.normal(size=8) - 0.1
    ratio, expected = welch(a, b, 1, 0.0), scipy.stats.ttest_ind(b, a, equal_var=False).confidence_interval()
    assert numpy.log([ratio.low, ratio.high]) == pytest.approx([expected.low, expected.high])
    with_days = welch(a, b, 1, 0.05)
    half = numpy.log(with_days.high / with_days.value)
    assert half > 1.9 * numpy.hypot(0.05, 0.05)  # two days, each with its own draw
    assert welch(a[:2], b, 1, 0.0).low is None


def test_sets_of_two_days_get_one_warning_and_day_sd_widens(compare, base, tmp_path):
    slow = of_another_day(tmp_path / "slow", SPEEDS | {"ddp": 150.0})
    done = compare(base, slow)
    assert done.err.count("warning: ") == 1 and "2026-11-21" in done.err and "2026-11-23" in done.err
    narrow, wide = (each.found["comparisons"][1] for each in (done, compare(base, slow, day_sd="10%")))
    assert narrow["verdict"] == "slower" and wide["verdict"] == "no difference seen"
    assert not compare(base, slow, day_sd="2%").err.count("warning")


def test_the_gate_keeps_slower_fine_and_undecided_apart(compare, base, tmp_path):
    slow = write_set(tmp_path / "slow", SPEEDS | {"ddp": 140.0})
    assert compare(base, slow, fail_over="5%").code == 1 and compare(base, slow, fail_over="40%").code == 0
    assert compare(slow, base, fail_over="0%", strategy="ddp").code == 0  # a gain
    near = compare(base, slow, fail_over="18%", strategy="ddp", day_sd="1%")
    assert near.code == 3 and "not decided" in near.err
    few = write_set(tmp_path / "few", SPEEDS, num_rounds=2)
    assert compare(base, few, fail_over="5%").code == 3


def test_a_strategy_that_b_lacks_is_named_and_not_undecided(compare, base, tmp_path):
    less = write_set(tmp_path / "less", {"single": 100.0, "ddp": 170.0})
    assert "only in" in compare(base, less).err
    done = compare(base, less, fail_over="20%")
    assert done.code == 1 and "failed: not timed in B: fsdp" in done.err and "not decided" not in done.err


def test_other_work_is_refused_and_another_machine_is_named(compare, base, tmp_path):
    other = write_set(tmp_path / "other", SPEEDS, precision="bf16")
    with pytest.raises(UserError, match=r"not alike in .*precision \(.* against bf16\).*--anyway"):
        compare(base, other)
    assert compare(base, other, anyway=True).code == 0
    machine = write_set(tmp_path / "machine", SPEEDS, device_name="Other CPU", torch="2.14.0")
    notes = [line for line in compare(base, machine).err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and "device_name (Test CPU against Other CPU)" in notes[0] and "torch (" in notes[0]


def test_prices_make_hours_and_money(compare, base, tmp_path):
    """90 epochs of 1,281,167 images at 170 images/s are 188 hours."""
    fast = write_set(tmp_path / "fast", {name: 2 * speed for name, speed in SPEEDS.items()}, device_name="Fast CPU")
    done = compare(base, fast, price=("base=1.5", "fast=6"))
    costs = {each["strategy"]: each for each in done.found["costs"]}
    ddp = costs["ddp"]
    (group,) = load_set(base).timed_groups_of("ddp")
    assert ddp["a_hours"] == pytest.approx(hours_of(group)) == pytest.approx(188.4, rel=0.05)
    assert ddp["a_money"] == pytest.approx(1.5 * ddp["a_hours"])
    assert ddp["ratio"] == pytest.approx(4 / 2, rel=0.05) and ddp["ratio_low"] < ddp["ratio"] < ddp["ratio_high"]
    assert "A is cheapest with ddp" in done.out
    for words, says in ((("fast=6",), "base has no price"), (("x=1",), "the sets are"), (("free",), "no price")):
        with pytest.raises(UserError, match=says):
            compare(base, fast, price=words)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"strategy": "dpp"}, "did you mean ddp"),
        ({"fail_over": "5%"}, "compare A B"),
        ({"day_sd": "2"}, "a percentage such as 5%"),
    ],
)
def test_mistakes_are_sentences(compare, base, options, words):
    with pytest.raises(UserError, match=words):
        compare(base, **options)


def test_a_set_without_ok_runs_ends_with_1(compare, base, tmp_path):
    done = compare(base, write_set(tmp_path / "failed", SPEEDS, status="failed"))
    assert done.code == 1 and "no ok rows" in done.err
