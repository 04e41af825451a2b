"""Families of comparisons: critical values are scipy's, intervals by hand, and every odd shape of a set."""

import math

import numpy
import pytest
import scipy.stats
from scipy.special import stdtrit

from scripts.stats import critical_values
from scripts.stats.families import (
    Sample,
    bartlett_p_value,
    find_spread,
    ratios_of_all_pairs,
    ratios_to_baseline,
    ratios_to_fastest,
    ratios_to_own_baselines,
)


def samples(rng, counts=(3, 3, 3, 3), sd=0.05, rounds=True) -> dict[str, Sample]:
    names = ["single", "ddp", "slurm", "amp", "fsdp", "more"]
    return {
        name: Sample(sd * rng.normal(size=count), [*range(count)] if rounds else [math.nan] * count)
        for name, count in zip(names, counts, strict=False)
    }


def logs(estimate) -> list[float]:
    return [math.log(each) for each in (estimate.low, estimate.value, estimate.high)]


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (5, 4, 4, 3), (2, 2, 2, 2, 2, 2)])
def test_intervals_over_a_baseline_are_scipys_dunnett(counts):
    found = samples(numpy.random.default_rng(1), counts, rounds=False)  # no rounds known: one-way, as scipy's
    ours = ratios_to_baseline("single", found)
    control, *others = (each.logs for each in found.values())
    theirs = scipy.stats.dunnett(*others, control=control, rng=2).confidence_interval(0.95)
    assert [logs(each)[0] for each in ours.values()] == pytest.approx(theirs.low, abs=1e-3)
    assert [logs(each)[2] for each in ours.values()] == pytest.approx(theirs.high, abs=1e-3)


def test_strategies_over_two_baselines_are_one_family():
    """Mutants: each baseline at the whole 95 %, which covers 0.91; Tukey's limits, which cover 0.99."""
    rng = numpy.random.default_rng(2)
    baselines = {"ddp": "single", "slurm": "single", "more": "amp", "fsdp": "amp"}
    found = [ratios_to_own_baselines(samples(rng, (4,) * 6, rounds=False), baselines) for _ in range(3000)]
    covered = numpy.mean([all(each.low <= 1 <= each.high for each in family.values()) for family in found])
    assert 0.945 <= covered <= 0.975
    alone = ratios_to_own_baselines(samples(rng, (4,) * 6), dict.fromkeys(("ddp", "slurm"), "single"))
    assert [*alone] == ["ddp", "slurm"]


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (5, 4, 4, 3)])
def test_intervals_of_all_pairs_are_scipys_tukey(counts):
    found = samples(numpy.random.default_rng(3), counts, rounds=False)
    order = sorted(found, key=lambda name: -found[name].logs.mean())
    theirs = scipy.stats.tukey_hsd(*(found[name].logs for name in order)).confidence_interval(0.95)
    pairs = ratios_of_all_pairs(found)
    assert next(iter(pairs)) == (order[0], order[1]) and len(pairs) == 6
    for (of, to), ours in pairs.items():
        place = order.index(of), order.index(to)
        assert logs(ours)[::2] == pytest.approx([theirs.low[place], theirs.high[place]], abs=1e-6)


def test_a_critical_value_is_computed_once_and_agrees_with_a_published_table():
    # Dunnett's table (1964): two-sided 5 %, 9 comparisons, 20 degrees of freedom: 2.95; 2 comparisons, 10: 2.57.
    critical_values.dunnett_critical_value.cache_clear()
    assert critical_values.dunnett_critical_value(3, (3,) * 9, 20) == pytest.approx(2.95, abs=0.01)
    assert critical_values.dunnett_critical_value(3, (3,) * 2, 10) == pytest.approx(2.57, abs=0.01)
    before = critical_values.dunnett_critical_value.cache_info().misses
    critical_values.dunnett_critical_value(3, (3,) * 9, 20)
    assert critical_values.dunnett_critical_value.cache_info().misses == before == 2
    assert critical_values.dunnett_critical_value(3, (3,), 4) == pytest.approx(stdtrit(4, 0.975))
    assert critical_values.tukey_critical_value(3, 12) * math.sqrt(2) == pytest.approx(
        3.77, abs=0.01
    )  # of any table of the range
    assert critical_values.sidak_critical_value(1, 7) == pytest.approx(stdtrit(7, 0.975))


def test_rounds_are_blocks_by_hand():
    # 4 strategies, 3 rounds, each 10 % slower than the last, residuals +-0.01 by hand: df 6, variance 8 x 1e-4 / 6.
    residuals = numpy.array([[1, -1, 0], [-1, 1, 0], [0, 1, -1], [0, -1, 1]]) / 100
    drift = numpy.array([0, -0.1, -0.2])
    found = {name: Sample(row + drift, [1.0, 2.0, 3.0]) for name, row in zip("abcd", residuals, strict=True)}
    spread = find_spread([*found.values()])
    assert (spread.blocked, spread.df) == (True, 6)
    assert spread.variance == pytest.approx(8e-4 / 6)
    half = logs(ratios_to_baseline("a", found)["b"])[2]
    assert half == pytest.approx(
        critical_values.dunnett_critical_value(3, (3, 3, 3), 6) * math.sqrt(spread.variance * 2 / 3)
    )
    apart = {name: Sample(each.logs, [1.0, 2.0, 2.0]) for name, each in found.items()}  # a round twice: no blocks
    assert not find_spread([*apart.values()]).blocked
    assert logs(ratios_to_baseline("a", apart)["b"])[2] > 5 * half


def test_rounds_of_several_sittings_are_no_blocks():
    # What a week did to one strategy is not what a round did to all.
    rng = numpy.random.default_rng(14)
    found = samples(rng)
    assert find_spread([*found.values()]).blocked

    def timed(**sessions):
        return [Sample(each.logs, each.rounds, sessions.get(name, (0, 0, 0))) for name, each in found.items()]

    assert find_spread(timed()) == find_spread([*found.values()])
    assert not find_spread(timed(ddp=(1, 1, 1))).blocked and not find_spread(timed(ddp=(0, 1, 0))).blocked
    assert find_spread(timed(**dict.fromkeys(found, (0, 0, 1)))).blocked, "a set that was gone on with"


def test_rounds_are_matched_by_their_number_and_not_by_their_place():
    rng = numpy.random.default_rng(4)
    found = samples(rng)
    turned = {name: Sample(each.logs[::-1], each.rounds[::-1]) for name, each in found.items()}
    mixed = found | {"ddp": turned["ddp"]}
    assert find_spread([*mixed.values()]).variance == pytest.approx(find_spread([*found.values()]).variance)


def test_bartletts_test_is_scipys():
    rng = numpy.random.default_rng(5)
    groups = [rng.normal(size=count) * (1 + count) for count in (3, 5, 8)]
    ours = bartlett_p_value(numpy.array([each.var(ddof=1) for each in groups]), numpy.array([2, 4, 7]))
    assert ours == pytest.approx(scipy.stats.bartlett(*groups).pvalue)


def test_strategies_of_unlike_spread_are_not_pooled():
    # One of four is 20 times as noisy: pooled, the quiet ones could not be told apart.
    rng = numpy.random.default_rng(6)
    found = samples(rng, (6, 6, 6, 6), sd=0.005)
    found["amp"] = Sample(0.1 * rng.normal(size=6), found["amp"].rounds)
    found["ddp"] = Sample(found["ddp"].logs + 0.03, found["ddp"].rounds)
    spread = find_spread([*found.values()])
    assert spread.variance is None and "own" in spread.method_text
    over = ratios_to_baseline("single", found)
    assert over["ddp"].verdict == "faster"
    # by hand: Welch's interval at Sidak's level of 3 comparisons
    first, second = found["amp"].logs, found["single"].logs
    theirs = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95 ** (1 / 3))
    assert logs(over["amp"])[::2] == pytest.approx([theirs.low, theirs.high])


def test_the_fastest_is_picked_after_looking_with_tukeys_intervals():
    found = samples(numpy.random.default_rng(7))
    found["amp"] = Sample(found["amp"].logs + 1, found["amp"].rounds)
    best, others = ratios_to_fastest(found)
    assert best == "amp" and others.keys() == {"single", "ddp", "slurm"}
    assert all(each.verdict == "slower" and each.high < 1 for each in others.values())
    assert others["ddp"].low == pytest.approx(1 / ratios_of_all_pairs(found)["amp", "ddp"].high)


def test_one_run_has_no_verdict_and_no_say():
    found = samples(numpy.random.default_rng(8), (3, 3, 1, 3))
    over = ratios_to_baseline("single", found)
    assert over["slurm"].verdict == "no verdict" and "one run" in over["slurm"].why and over["slurm"].low is None
    without = {name: each for name, each in found.items() if name != "slurm"}
    assert over["ddp"] == ratios_to_baseline("single", without)["ddp"]
    assert ratios_to_fastest(found)[1].keys() | {ratios_to_fastest(found)[0]} == found.keys()


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (3, 1), (1, 1, 1)])
def test_sets_in_which_nothing_can_be_said(counts):
    found = samples(numpy.random.default_rng(9), counts)
    assert {each.verdict for each in ratios_to_baseline("single", found).values()} == {"no verdict"}
    assert {each.verdict for each in ratios_of_all_pairs(found).values()} == {"no verdict"}


def test_constant_throughput_is_no_certainty():
    same = {name: Sample(numpy.full(3, log), [1.0, 2.0, 3.0]) for name, log in (("single", 0.0), ("ddp", 0.1))}
    same |= {name: Sample(numpy.full(3, 0.2), [1.0, 2.0, 3.0]) for name in ("slurm", "amp")}
    for found in (same, {name: same[name] for name in ("single", "ddp")}):
        assert {each.verdict for each in ratios_to_baseline("single", found).values()} == {"no verdict"}
        assert {each.verdict for each in ratios_of_all_pairs(found).values()} == {"no verdict"}
    assert "same throughput" in ratios_to_baseline("single", same)["ddp"].why


def test_one_constant_strategy_among_noisy_ones_is_judged_by_their_noise():
    found = samples(numpy.random.default_rng(10))
    found["ddp"] = Sample(numpy.zeros(3), found["ddp"].rounds)
    assert all(each.low < each.high for each in ratios_to_baseline("single", found).values())


def test_two_groups_alone_are_a_plain_t_test():
    found = samples(numpy.random.default_rng(11), (3, 3))
    theirs = scipy.stats.ttest_ind(found["ddp"].logs, found["single"].logs).confidence_interval()
    assert logs(ratios_to_baseline("single", found)["ddp"])[::2] == pytest.approx([theirs.low, theirs.high])
    seven = samples(numpy.random.default_rng(12), (7, 7))
    theirs = scipy.stats.ttest_rel(seven["ddp"].logs, seven["single"].logs).confidence_interval()
    ours = ratios_to_baseline("single", seven)["ddp"]
    assert ours.paired and logs(ours)[::2] == pytest.approx([theirs.low, theirs.high])
    assert logs(ratios_of_all_pairs(seven)[ratios_to_fastest(seven)[0], next(iter(ratios_to_fastest(seven)[1]))])[2] > 0


def test_a_baseline_that_is_not_there_and_a_set_of_one():
    found = samples(numpy.random.default_rng(13), (3,))
    assert (
        ratios_to_baseline("single", found) == {}
        and ratios_of_all_pairs(found) == {}
        and ratios_to_fastest(found) == ("single", {})
    )
    with pytest.raises(KeyError):
        ratios_to_baseline("dpp", found)
