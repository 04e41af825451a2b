"""A pair of strategies has one interval, wherever it is shown.

.venv/bin/python -m pytest tests/report/test_one_interval.py
"""

import re

import pytest
from result_sets import write_set

from scripts.charts.plot import summary_table
from scripts.charts.throughput import speedup_chart
from scripts.report.headline import headline
from scripts.report.report_tables import table_rows
from scripts.results.families import log_table, ratios_to_own_baselines
from scripts.results.intervals import ratio_of_rounds
from scripts.results.result_set import load_set
from scripts.shared.strategy_list import BASELINE
from scripts.studies.compare import within_set

BASES = {"ddp": BASELINE, "fsdp": BASELINE, "zero1": BASELINE}
STRATEGY = FASTEST = "ddp"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sets") / "set"
    return load_set(write_set(folder, {BASELINE: 100.0, "ddp": 160.0, "fsdp": 120.0, "zero1": 105.0}))


@pytest.fixture(scope="module")
def over(results):
    """The interval of one strategy over `single`, all strategies together."""
    samples = {group.label: group.sample for group in results.timed_groups}
    return ratios_to_own_baselines(samples, BASES)[STRATEGY]


def bounds(estimate, digits):
    return f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def test_the_methods_differ_on_the_set(results, over):
    own, base = log_table({name: results.timed_groups_of(name)[0].sample for name in (STRATEGY, BASELINE)})
    alone = ratio_of_rounds(own - base)
    assert bounds(alone, 2) != bounds(over, 2)


@pytest.mark.medium
def test_the_report_shows_it(results, over):
    (row,) = [row for row in table_rows(results) if row["strategy"] == STRATEGY]
    assert row["x single"] == f"{over.value:.2f} {bounds(over, 2)}"
    of_fastest = results.speedups.get(FASTEST)
    reported = f": {of_fastest.value:.2f}x {bounds(of_fastest, 2)} {BASES[FASTEST]}" if of_fastest else " ("
    leads = rf"{FASTEST}(, one process,)? (is the fastest|has the highest mean) of those in [\w ]+{re.escape(reported)}"
    assert re.search(leads, headline(results)[1])


def test_the_printed_table_shows_it(results, over):
    (line,) = [text for text in summary_table(results).splitlines() if text.startswith(f"{STRATEGY} ")]
    assert re.search(rf" {over.value:.2f} {re.escape(bounds(over, 2))} ", line)


def test_the_speedup_chart_shows_it(results, over):
    ends = [tuple(line.get_xdata()) for line in speedup_chart([results]).axes[0].lines if line.get_marker() == "|"]
    assert pytest.approx((over.low, over.high)) in ends


def test_compare_shows_it(results, over):
    (pair,) = [each for each in within_set(results, "") if each.title == f"{STRATEGY} / {BASELINE}"]
    assert (pair.ratio.low, pair.ratio.high) == (over.low, over.high)
