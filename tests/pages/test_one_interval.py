"""A pair of strategies has one interval, wherever it is shown.

.venv/bin/python -m pytest tests/pages/test_one_interval.py
"""

import re

import pytest

from scripts.charts.plot import summary_table
from scripts.charts.throughput import speedup_chart
from scripts.pages.headline import headline
from scripts.pages.report_tables import table_rows
from scripts.publish.readme import PUBLISHED, shown_sets
from scripts.sets.result_set import load_set
from scripts.stats.families import log_table, ratios_to_own_baselines
from scripts.stats.intervals import ratio_of_rounds
from scripts.strategies.strategy_list import BASELINE
from scripts.studies.compare import compare
from scripts.studies.compare.analysis import within_set

PUBLISHED_SET = load_set(PUBLISHED / shown_sets(PUBLISHED)["cpu"])
TIMED = PUBLISHED_SET.timed_groups
FASTEST = max(PUBLISHED_SET.rankable_groups, key=lambda group: group.sample.log_throughputs.mean()).label
BASES = PUBLISHED_SET.baseline_label_of
SAMPLES = {group.label: group.sample for group in TIMED if group.label in {*BASES, *BASES.values()}}
# of those over BASELINE itself, and not over one in another precision
STRATEGY = max(
    (label for label in BASES if BASES[label] == BASELINE), key=lambda label: SAMPLES[label].log_throughputs.mean()
)


@pytest.fixture(scope="module")
def published():
    return PUBLISHED_SET


@pytest.fixture(scope="module")
def over():
    """The interval of one strategy over `single`, all strategies together."""
    return ratios_to_own_baselines(SAMPLES, BASES)[STRATEGY]


def bounds(estimate, digits):
    return f"[{estimate.low:.{digits}f}, {estimate.high:.{digits}f}]"


def test_the_methods_differ_on_the_set(published, over):
    own, base = log_table({name: published.timed_groups_of(name)[0].sample for name in (STRATEGY, BASELINE)})
    alone = ratio_of_rounds(own - base)
    assert bounds(alone, 2) != bounds(over, 2)


@pytest.mark.medium
def test_the_report_shows_it(published, over):
    (row,) = [row for row in table_rows(published) if row["strategy"] == STRATEGY]
    assert row["x single"] == f"{over.value:.2f} {bounds(over, 2)}"
    of_fastest = published.speedups.get(FASTEST)
    reported = f": {of_fastest.value:.2f}x {bounds(of_fastest, 2)} {BASES[FASTEST]}" if of_fastest else " ("
    leads = rf"{FASTEST}(, one process,)? (is the fastest|has the highest mean) of those in \w+{re.escape(reported)}"
    assert re.search(leads, headline(published)[1])


def test_the_printed_table_shows_it(published, over):
    (line,) = [text for text in summary_table(published).splitlines() if text.startswith(f"{STRATEGY} ")]
    assert re.search(rf" {over.value:.2f} {re.escape(bounds(over, 2))} ", line)


def test_the_speedup_chart_shows_it(published, over):
    ends = [tuple(line.get_xdata()) for line in speedup_chart([published]).axes[0].lines if line.get_marker() == "|"]
    assert pytest.approx((over.low, over.high)) in ends


def test_compare_shows_it_once(published, over):
    lines = compare.comparison_table(within_set(published, "", False)).splitlines()
    pair = [text for text in lines if re.match(rf"({STRATEGY} / {BASELINE}|{BASELINE} / {STRATEGY}) ", text)]
    assert len(pair) == 1 and f" {bounds(over, 3)} " in pair[0]
