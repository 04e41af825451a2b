"""./bench export: the values of a set as JSON.

.venv/bin/python -m pytest tests/report/test_export.py
"""

import json

import pytest
from result_sets import write_set
from support import recorded

from benchmarks.common.rows import append_rows
from scripts.report import export
from scripts.results.options import ExportOptions
from scripts.results.result_set import load_set


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_set(tmp_path_factory.mktemp("sets") / "example", energy_j_per_image=2.5)
    row = {"run_id": "fsdp-1", "strategy": "fsdp", "repeat": 1, "status": "timeout", "reason": "600 s without an end"}
    row |= {"world_size": 2, "nodes": 1, "threads_per_rank": 1}
    append_rows(folder, "runs", [recorded(folder, row)])
    return folder


def test_values_are_those_of_the_set(folder, capsys):
    results = load_set(folder)
    assert export.main(ExportOptions(folder)) == 0
    groups = {group["label"]: group for group in json.loads(capsys.readouterr().out)["groups"]}
    rate, over = results.timed_groups_of("ddp")[0].throughput, results.speedups["ddp"]
    ddp = groups["ddp"]
    numbers = [ddp["images_per_s"][part] for part in ("value", "low", "high", "num_runs")]
    assert numbers == pytest.approx([rate.value, rate.low, rate.high, 5])
    ratio = ddp["ratio_to_baseline"]
    assert (ratio["value"], ratio["low"], ratio["high"]) == pytest.approx((over.value, over.low, over.high))
    assert (ratio["baseline"], ratio["verdict"]) == ("single", "faster")
    assert ddp["energy_j_per_image"]["value"] == 2.5 and ddp["same_update"] == "identical"
    assert groups["fsdp"]["runs"] == {"timeout": 1} and groups["fsdp"]["reasons"] == ["600 s without an end"]
    assert groups["fsdp"]["images_per_s"] is groups["fsdp"]["ratio_to_baseline"] is None
