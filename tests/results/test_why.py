"""What ./bench why names first, of causes that are planted in the tables of a set.

.venv/bin/python -m pytest tests/results/test_why.py
"""

import json

import pandas
import pytest
from result_sets import add_runs

from scripts.results import why
from scripts.results.options import WhyOptions
from scripts.results.result_set import load_set

MS = {"data": 2, "copy": 1, "forward": 30, "backward": 60, "exposed_comm": 3, "wait": 0, "optimizer": 4, "other": 0}
GPU = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "fp32"}


def row_of(folder, strategy="ddp", ms=None, environment=None, met=None, asked=None, **columns):
    """The row of a strategy with these milliseconds of a step. met, asked: settings of its runs."""
    add_runs(folder, strategy, 100, **columns)
    (folder / "environment.json").write_text(json.dumps(environment or {"num_cores": 2}))
    results = load_set(folder)
    steps = results.table("steps")
    for phase, value in (MS | (ms or {})).items():
        steps.loc[steps.data_ms.notna(), f"{phase}_ms"] = float("nan") if value is None else value
    (group,) = results.timed_groups
    group.identity.resolved.update(met or {})
    group.identity.requested.update(asked or {})
    vars(group.identity).pop("fields", None)  # cached
    (row,) = why.why_rows(results)
    return row


PLANTED = {
    "nothing": (
        {"memory_format": "contiguous", "ms": {"data": 13}},
        "compute",
        "./bench run ddp -- --memory-format channels_last",
    ),
    "stages on shared cores": (
        {"strategy": "hybrid_parallel", "met": {"num_stages": 2, "num_microbatches": 1}},
        "compute",
        "./bench run hybrid_parallel",
    ),
    "another configuration": (
        {"ms": {"exposed_comm": 40}, "config": "a b.yaml", "options": "--config 'a b.yaml' --bucket-cap-mb 5 --label x"}
        | {"asked": {"data": "/photos"}},
        "exposed communication",
        "./bench run ddp ddp_compressed --config 'a b.yaml' --data /photos -- --bucket-cap-mb 5",
    ),
    "a slow loader": ({"ms": {"data": 200}}, "loader", "./bench data pack && ./bench run ddp -- --loader packed"),
    "a busy neighbour": (
        {"ms": {"exposed_comm": 40}, "other_cpu_pct": 33},
        "a busy neighbour",
        "close it (top names it)",
    ),
    "a throttled link, and a neighbour who costs less": (
        {"ms": {"exposed_comm": 150}, "other_cpu_pct": 33},
        "exposed communication",
        "./bench run ddp ddp_compressed",
    ),
    "stages that take turns": (
        {"strategy": "model_parallel", "met": {"num_stages": 2, "num_microbatches": 1}, **GPU},
        "waiting",
        "./bench run model_parallel -- --split-size 8",
    ),
    "communication within the passes": (
        {"strategy": "fsdp", "ms": {"exposed_comm": None}},
        "compute with communication",
        "./bench study profile --strategy fsdp",
    ),
    "fp32 on GPUs": (GPU, "compute", "./bench run ddp ddp_amp"),
    "others on the GPUs": (GPU | {"other_gpu_processes": 1}, "a busy neighbour", "close it (nvidia-smi names it)"),
}


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named(tmp_path, cause):
    planted, limit, command = PLANTED[cause]
    row = row_of(tmp_path, **planted)
    assert row.limit == limit and row.command.startswith(command) and f"-> {limit} limits it" in row.text


def test_the_bubble_stands_beside_theory(tmp_path):
    met = {"num_stages": 2, "num_microbatches": 2}
    row = row_of(tmp_path, "pipeline_parallel", {"wait": 30, "exposed_comm": None}, met=met)
    assert row.limit == "waiting" and row.command == "./bench run pipeline_parallel -- --microbatches 4"
    assert row.detail == "up to 25 % of a rank's time, 33 % in theory, of 2 stages and 2 micro-batches"


def test_a_neighbour_on_cores_that_a_run_leaves_idle_costs_nothing(tmp_path):
    assert row_of(tmp_path, "single", world_size=1, other_cpu_pct=50).limit == "compute"


def test_mfu_stands_beside_compute(tmp_path):
    peak = {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}}
    assert row_of(tmp_path, environment={"num_cores": 2, "measured_peak": peak}).detail == "MFU 25 %"


def test_without_accounted_steps_it_says_how_to_get_them(tmp_path, capsys):
    add_runs(tmp_path, "ddp", 100)
    steps = pandas.read_csv(tmp_path / "steps.csv")
    steps[steps.data_ms.isna()].to_csv(tmp_path / "steps.csv", index=False)
    assert why.main(WhyOptions(tmp_path)) == 0
    said = "ddp: no step was accounted -> not measured: ./bench run ddp -- --account-steps 10\n"
    assert capsys.readouterr().out == said
