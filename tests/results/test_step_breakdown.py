"""Exposed communication and bubbles: one estimator, whose interval holds what it says.

.venv/bin/python -m pytest tests/results/test_step_breakdown.py
"""

import numpy
import pytest
from test_result_set import MET, add, asked

from benchmarks.common.rows import append_rows
from scripts.results.result_set import load_set
from scripts.results.step_breakdown import (
    PHASES,
    exposed_communication,
    mean_over_steps,
    pipeline_bubbles,
    shares_text,
    step_shares,
)

PIPELINE = MET | {"num_stages": 2, "num_microbatches": 4, "num_shards": 1}


@pytest.mark.parametrize("between", [0.0, 0.5, 1.0])
def test_the_interval_covers(between):
    """Protects the 95 %: of steps that are alike in all runs, and of runs that differ as much as their steps do."""
    rng, held = numpy.random.default_rng(0), 0
    for _ in range(1000):
        found = mean_over_steps([54 + between * rng.normal() + rng.normal(size=8) for _ in range(3)])
        held += found.low <= 54 <= found.high
    assert held >= 920  # 935 and more were measured of 1500; two standard errors are 15


def accounted(folder, met, of_rank) -> None:
    """Three runs of four accounted steps on each rank. of_rank: milliseconds of the phases of a rank."""
    for repeat in (1, 2, 3):
        add(folder, asked("pipeline_parallel"), met, repeat=repeat)
    rows = load_set(folder).groups[0].rows
    jitter = numpy.random.default_rng(0)
    for run_id in rows.run_id:
        for rank, phases in enumerate(of_rank):
            zero = dict.fromkeys(f"{phase}_ms" for phase in PHASES if phase != "exposed_comm")
            steps = [
                {name: phases.get(name.removesuffix("_ms"), 0.0) * (1 + 0.01 * jitter.normal()) for name in zero}
                for _ in range(4)
            ]
            reported = [{"exposed_comm_ms": 30 + jitter.normal()}] if "exposed_comm" in phases else [{}]
            append_rows(
                folder,
                "steps",
                [{"run_id": run_id, "rank": rank, "step": 1, "step_ms": 1.0} | s | reported[0] for s in steps],
            )


def test_a_pipeline_shows_how_long_each_rank_waited(tmp_path):
    """Protects the bubble: waiting is no forward pass, and each stage is shown beside what theory allows."""
    accounted(
        tmp_path, PIPELINE, [{"forward": 30, "backward": 50, "wait": 20}, {"forward": 20, "backward": 40, "wait": 60}]
    )
    results = load_set(tmp_path)
    (group,) = results.groups
    found = pipeline_bubbles(group, results.table("steps"))
    assert [bubble.rank for bubble in found] == [0, 1]
    assert [bubble.waited.value for bubble in found] == pytest.approx([0.2, 0.5], abs=0.01)
    assert [bubble.ideal for bubble in found] == [0.2, 0.2]  # (2 - 1) / (4 + 2 - 1)
    assert exposed_communication(group, results.table("steps")) is None
    assert shares_text(step_shares(group, results.table("steps"))) == "compute 64 %, waiting 36 %"  # over both ranks


def test_exposed_communication_has_an_interval_over_runs(tmp_path):
    accounted(tmp_path, MET, [{"forward": 30, "backward": 50, "exposed_comm": 30}])
    results = load_set(tmp_path)
    (group,) = results.groups
    found = exposed_communication(group, results.table("steps"))
    assert (found.num_steps, found.num_runs) == (12, 3) and found.text().startswith("30 [")
    assert shares_text(step_shares(group, results.table("steps"))) == "compute 73 %, exposed communication 27 %"
    assert mean_over_steps([]) is None and mean_over_steps([numpy.array([1.0, 3.0])]).text() == "2"


def test_communication_that_cannot_be_told_apart_is_named_with_compute(tmp_path):
    """Protects fsdp, whose ranks wait within their passes, from "compute 100 %"."""
    accounted(tmp_path, MET, [{"forward": 30, "backward": 50, "data": 20}])
    results = load_set(tmp_path)
    (group,) = results.groups
    group.rows["world_size"] = 2
    assert shares_text(step_shares(group, results.table("steps"))) == "compute with communication 80 %, loader 20 %"
