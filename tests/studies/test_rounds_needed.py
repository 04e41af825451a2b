"""Power as people mean it: 80 of 100. By hand for two strategies, and by simulation for a family."""

import math

import numpy
import pytest
from result_sets import write_set
from scipy import stats
from simulate import samples_of

from benchmarks.common.errors import UserError
from scripts.results.families import ratios_to_baseline
from scripts.results.independence import AUTOCORRELATED
from scripts.results.result_set import load_set
from scripts.studies.power import rounds_needed


def test_two_strategies_are_a_t_test():
    needed = rounds_needed.needed_sds(1, 5)
    assert stats.nct.sf(stats.t.ppf(0.975, 4), 4, needed * 5**0.5) == pytest.approx(0.8, abs=1e-4)
    assert rounds_needed.smallest_difference(0.04, 1, 5) == pytest.approx(math.expm1(0.04 * needed))


@pytest.mark.parametrize("strategies, rounds", [pytest.param(6, 10, marks=pytest.mark.medium), (3, 6)])
@pytest.mark.medium
def test_the_difference_is_found_by_80_in_100(strategies, rounds):
    # Mutant: the half-width in its place is found by about 50.
    rng, sd = numpy.random.default_rng(1), 0.04
    slow = math.log1p(rounds_needed.smallest_difference(sd * math.sqrt(2), strategies - 1, rounds))
    found = []
    for _ in range(600):
        logs = sd * rng.normal(size=(strategies, rounds))
        logs[1] += slow
        found.append(ratios_to_baseline("0", samples_of(logs))["1"])
    found = [each.verdict == "faster" for each in found if each.why != AUTOCORRELATED]
    least = 0.75 if rounds >= 10 else 0.70  # what few rounds seem to have in common makes some intervals wider
    assert least <= numpy.mean(found) <= 0.85


def test_rounds_needed_are_the_fewest_that_find_it():
    for difference in (0.05, 0.2, 0.9):
        needed = rounds_needed.fewest_rounds(difference, 0.04, 4)
        assert rounds_needed.smallest_difference(0.04, 4, needed) <= difference
        assert needed == 5 or rounds_needed.smallest_difference(0.04, 4, needed - 1) > difference
    assert rounds_needed.fewest_rounds(0.001, 0.2, 2) is None


def test_a_set_says_what_it_found_and_what_more_would(tmp_path, capsys):
    results = load_set(write_set(tmp_path / "set", {"single": 100.0, "ddp": 150.0, "fsdp": 120.0}))
    assert rounds_needed.run_command_line(["--results", str(results.path)]) == 0
    out = capsys.readouterr().out
    assert f"{len(results.compared_groups)} strategies, baseline included; " in out
    assert out.count(" rounds (of the") == 3


def test_a_set_without_a_spread_is_a_users_error(tmp_path):
    (tmp_path / "runs.csv").write_text("run_id,strategy,status\n")
    with pytest.raises(UserError, match="two strategies"):
        rounds_needed.report_lines(load_set(tmp_path))
