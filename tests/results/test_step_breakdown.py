"""Exposed communication and bubbles: one estimator, whose interval holds what it says.

.venv/bin/python -m pytest tests/results/test_step_breakdown.py
"""

import numpy
import pandas
import pytest
from test_result_set import MET, add, asked

from benchmarks.common.rows import append_rows
from scripts.results.result_set import load_set
from scripts.results.step_breakdown import (
    PHASES,
    exposed_communication,
    mean_over_runs,
    pipeline_bubbles,
    shares_text,
    step_shares,
)


def test_the_interval_is_over_runs():
    found = mean_over_runs(pandas.Series([1.0, 3, 2, 4, 3, 5]), pandas.Series([*"aabbcc"]))
    assert found.value == 3 and found.high - found.value == pytest.approx(4.3027 / 3**0.5, rel=1e-4)  # means 2, 3, 4


def accounted(folder, of_rank, **met):
    """(the group, its steps) of three runs of four accounted steps on each rank. of_rank: milliseconds of phases."""
    for repeat in (1, 2, 3):
        add(folder, asked("pipeline_parallel"), MET | met, repeat=repeat, world_size=2)
    jitter = numpy.random.default_rng(0)
    for number in range(3):
        for rank, phases in enumerate(of_rank):
            known = dict.fromkeys(PHASES, 0.0) | {"exposed_comm": None} | phases
            for _ in range(4):
                ms = {f"{phase}_ms": known[phase] and known[phase] * (1 + 0.01 * jitter.normal()) for phase in PHASES}
                row = {"run_id": f"run-{number}", "rank": rank, "step": 1, "step_ms": 1.0}
                append_rows(folder, "steps", [row | ms])
    results = load_set(folder)
    (group,) = results.groups
    return group, results.table("steps")


def test_a_pipeline_shows_how_long_each_rank_waited(tmp_path):
    """Waiting is no forward pass, and each stage is shown beside what theory allows."""
    of_rank = [{"forward": 30, "backward": 50, "wait": 20}, {"forward": 20, "backward": 40, "wait": 60}]
    group, steps = accounted(tmp_path, of_rank, num_stages=2, num_microbatches=4, num_shards=1)
    found = pipeline_bubbles(group, steps)
    assert [bubble.rank for bubble in found] == [0, 1]
    assert [bubble.waited.value for bubble in found] == pytest.approx([0.2, 0.5], abs=0.01)
    assert [bubble.ideal for bubble in found] == [0.2, 0.2]  # (2 - 1) / (4 + 2 - 1)
    assert exposed_communication(group, steps) is None
    assert shares_text(step_shares(group, steps)) == "compute 64 %, waiting 36 %"  # over both ranks


def test_exposed_communication_has_an_interval_over_runs(tmp_path):
    group, steps = accounted(tmp_path, [{"forward": 30, "backward": 50, "exposed_comm": 30}])
    assert exposed_communication(group, steps).text("{:.0f}".format).startswith("30 [")
    assert shares_text(step_shares(group, steps)) == "compute 73 %, exposed communication 27 %"


def test_communication_that_cannot_be_told_apart_is_named_with_compute(tmp_path):
    """As of fsdp, whose ranks wait within their passes."""
    group, steps = accounted(tmp_path, [{"forward": 30, "backward": 50, "data": 20}])
    assert shares_text(step_shares(group, steps)) == "compute with communication 80 %, loader 20 %"
