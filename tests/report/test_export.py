"""./bench export: the values of a set as JSON.

.venv/bin/python -m pytest tests/report/test_export.py
"""

import json
import re
from pathlib import Path

import pytest
from result_sets import change, write_set
from support import recorded

from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows
from scripts.report import export
from scripts.report.set_document import SCHEMA_VERSION, set_document
from scripts.results.options import ExportOptions
from scripts.results.result_set import load_set

SCHEMA = json.loads((Path(export.__file__).parent / "export.schema.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two timed strategies, one that failed for good, and a skipped one."""
    folder = tmp_path_factory.mktemp("sets") / "example"
    write_set(folder, energy_j_per_image=2.5)
    common = {"schema": 2, "arch": "resnet18", "image_size": 48, "global_batch": 32, "loader": "folder", "nodes": 1}
    common |= {"threads_per_rank": 1, "world_size": 2, "wall_s": 3.0}
    others = [
        {"run_id": "fsdp-1", "strategy": "fsdp", "repeat": 1, "status": "timeout", "reason": "600 s without an end"},
        {"run_id": "apex_ddp-1", "strategy": "apex_ddp", "status": "skipped", "reason": "needs NVIDIA GPUs"},
    ]
    append_rows(folder, "runs", [recorded(folder, common | row) for row in others])
    return folder


def test_values_are_those_of_the_set(folder):
    """Protects the numbers, and their names, by which programs read them."""
    results, document = load_set(folder), set_document(load_set(folder))
    assert document.keys() == SCHEMA["properties"].keys() and document["schema"] == SCHEMA_VERSION
    for group, exported in zip(results.groups, document["groups"], strict=True):
        assert exported.keys() == SCHEMA["$defs"]["group"]["properties"].keys()
        assert exported["label"] == group.label
        if (rate := group.throughput) is None:
            assert exported["images_per_s"] is exported["epoch_s"] is exported["ratio_to_baseline"] is None
            continue
        numbers = [exported["images_per_s"][part] for part in ("value", "low", "high", "num_runs")]
        assert numbers == pytest.approx([rate.value, rate.low, rate.high, 5])
        epoch = exported["epoch_s"]
        assert epoch["value"] == pytest.approx(1_281_167 / rate.value) and not epoch["is_measured"]
        assert epoch["low"] < epoch["value"] < epoch["high"]
        assert exported["energy_j_per_image"]["value"] == 2.5 and exported["proof"]["verdict"] == "proved"
    groups = {group["label"]: group for group in document["groups"]}
    ratio, over = groups["ddp"]["ratio_to_baseline"], results.speedups["ddp"]
    assert (ratio["value"], ratio["low"], ratio["high"]) == pytest.approx((over.value, over.low, over.high))
    assert (ratio["baseline"], ratio["verdict"]) == ("single", "faster")
    assert groups["fsdp"]["runs"]["timeout"] == 1 and groups["fsdp"]["reasons"] == ["600 s without an end"]


def test_the_text_of_a_set_controls_no_terminal(tmp_path):
    evil = 'x\x1b]0;owned\x07<b>"\\&\u202e'
    write_set(tmp_path / "set", device_name=evil, torch=evil, commit=evil)
    change(tmp_path / "set", "runs", lambda frame: frame.assign(reason=evil))
    assert not re.search(r"[^\n -~]", export.export_text(load_set(tmp_path / "set")))


def test_the_command_writes_a_file_or_prints(folder, tmp_path, capsys):
    out = tmp_path / "set.json"
    assert export.main(ExportOptions(folder, out)) == 0
    assert capsys.readouterr().out == ""
    assert export.main(ExportOptions(folder)) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(out.read_text()) == set_document(load_set(folder))
    with pytest.raises(UserError, match="--out"):
        export.main(ExportOptions(folder, tmp_path / "no" / "such" / "folder"))


def test_a_comparison_names_its_two_sets(tmp_path, capsys):
    """Protects who exports what ./bench ab left: its rows are in the sets A and B."""
    for name in ("A", "B"):
        write_set(tmp_path / name)
    assert export.main(ExportOptions(tmp_path)) == 1
    assert f"export one of the sets of this comparison: {tmp_path}/A or {tmp_path}/B\n" in capsys.readouterr().err
