"""./bench export: golden files, the JSON's schema, a strict reader of OpenMetrics, and CI's view of failures.

    .venv/bin/python -m pytest tests/export/test_export.py

The golden files are written again by: PYTHONPATH=.:tests .venv/bin/python tests/export/test_export.py
"""

import json
import math
import re
import typing
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from result_sets import change, write_set
from support import recorded

from benchmarks.common.store.results import append_rows
from benchmarks.common.system.errors import UserError
from scripts.export import export, openmetrics
from scripts.export.set_document import SCHEMA_VERSION, set_document
from scripts.options.set_options import ExportFormat, ExportOptions
from scripts.publish.readme import PUBLISHED
from scripts.sets.result_set import load_set

GOLDEN = Path(__file__).parent / "golden"
FORMATS = typing.get_args(ExportFormat)
FILES = {"json": "set.json", "openmetrics": "set.prom", "github-action-benchmark": "action.json", "junit": "junit.xml"}
SCHEMA = json.loads((Path(export.__file__).parent / "export.schema.json").read_text())
OLDEST, *NEWER = sorted(PUBLISHED.glob("cpu*"))
SETS = [OLDEST, *(pytest.param(path, marks=pytest.mark.medium) for path in NEWER)]
FAILED = "rank 1: signal 9, possibly out of memory"
SKIPPED = "needs NVIDIA GPUs"


def make_set(folder: Path) -> Path:
    """Two timed strategies, a round that failed and was tried again, one that failed for good, and a skipped one."""
    write_set(folder, energy_j_per_image=2.5, precision="fp32", memory_format="contiguous", peak_memory_mb=900.0)
    common = {"schema": 2, "arch": "resnet18", "image_size": 48, "global_batch": 32, "loader": "folder", "nodes": 1}
    common |= {"threads_per_rank": 1, "world_size": 2, "wall_s": 3.0}
    others = [
        {"run_id": "fsdp-1", "strategy": "fsdp", "repeat": 1, "status": "timeout", "reason": "600 s without an end"},
        {"run_id": "apex_ddp-1", "strategy": "apex_ddp", "status": "skipped", "reason": SKIPPED},
    ]
    append_rows(folder, "runs", [recorded(folder, common | row) for row in others])

    def first_attempt_failed(frame):
        row = frame[(frame.strategy == "ddp") & (frame["repeat"] == "2")].assign(
            run_id="ddp-2-first", status="failed", reason=FAILED, images_per_s=""
        )
        return type(frame)([*row.to_dict("records"), *frame.to_dict("records")], columns=frame.columns)

    change(folder, "runs", first_attempt_failed)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("sets") / "example")


@pytest.fixture(scope="module")
def document(folder):
    return set_document(load_set(folder))


# --- golden files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("export_format", FORMATS)
def test_each_format_is_its_golden_file(folder, export_format):
    """Protects who reads the files by a program: no name, unit or order changes unseen."""
    assert export.export_text(load_set(folder), export_format) == (GOLDEN / FILES[export_format]).read_text()


def test_values_are_those_of_the_set(folder, document):
    """Protects the numbers themselves, which a golden file would keep wrong. Mutants: low and high exchanged; the
    epoch of 1,000 images."""
    results = load_set(folder)
    for group, exported in zip(results.groups, document["groups"], strict=True):
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
    ratio = next(each["ratio_to_baseline"] for each in document["groups"] if each["label"] == "ddp")
    over = results.speedups["ddp"]
    assert (ratio["value"], ratio["low"], ratio["high"]) == pytest.approx((over.value, over.low, over.high))
    assert 1.6 < ratio["low"] < 1.7 < ratio["high"] < 1.8 and (ratio["baseline"], ratio["verdict"]) == (
        "single",
        "faster",
    )


# --- JSON ---------------------------------------------------------------------------------------------------------

KINDS = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_kind(value, kind) -> bool:
    if kind in ("number", "integer"):
        whole = isinstance(value, int) or kind == "number"
        return isinstance(value, int | float) and not isinstance(value, bool) and whole and math.isfinite(value)
    return isinstance(value, KINDS[kind])


def faults(value, schema, place="") -> list[str]:
    """Where a value breaks a JSON schema, of the keywords that export.schema.json uses; it may use no other."""
    unknown = schema.keys() - {
        "$schema", "$defs", "$ref", "title", "description", "type", "const", "enum", "anyOf", "items", "properties",
        "required", "additionalProperties",
    }  # fmt: skip
    assert not unknown, unknown
    found = []
    if "$ref" in schema:
        found += faults(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], place)
    kinds = schema.get("type", [])
    if kinds and not any(is_kind(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return [*found, f"{place}: {value!r} is no {kinds}"]
    if value != schema.get("const", value) or value not in schema.get("enum", [value]):
        found.append(f"{place}: {value!r}")
    if "anyOf" in schema and all(faults(value, each, place) for each in schema["anyOf"]):
        found.append(f"{place}: {value!r} is none of anyOf")
    if isinstance(value, list):
        found += [
            each for n, part in enumerate(value) for each in faults(part, schema.get("items", {}), f"{place}/{n}")
        ]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [f"{place}: lacks {name}" for name in schema.get("required", []) if name not in value]
        if not schema.get("additionalProperties", True):
            found += [f"{place}: has {name}" for name in value.keys() - properties.keys()]
        for name in value.keys() & properties.keys():
            found += faults(value[name], properties[name], f"{place}/{name}")
    return found


@pytest.mark.parametrize("path", [None, *SETS], ids=lambda path: path.name if path else "made")
def test_the_json_follows_its_schema(folder, path):
    """Protects who generates a reader from the schema."""
    exported = json.loads(export.export_text(load_set(path or folder), "json"))
    assert faults(exported, SCHEMA) == [] and exported["schema"] == SCHEMA_VERSION


@pytest.mark.parametrize(
    "spoil",
    [
        lambda it: it.pop("torch"),
        lambda it: it.update(more=1),
        lambda it: it.update(schema=2),
        lambda it: it["groups"][0]["images_per_s"].pop("low"),
        lambda it: it["groups"][0]["images_per_s"].update(value=None),
        lambda it: it["groups"][0]["runs"].update(ok=5.5),
        lambda it: it["groups"][0].update(is_parallel=1),
        lambda it: it["groups"][0]["proof"].update(verdict="yes"),
        lambda it: it["hardware"].append(None),
    ],
)
def test_what_breaks_the_schema_is_seen(document, spoil):
    """Shows that the checker above has teeth."""
    spoil(spoiled := json.loads(json.dumps(document)))
    assert len(faults(spoiled, SCHEMA)) >= 1


# --- OpenMetrics --------------------------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
NUMBER = r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
METADATA = re.compile(rf"# (TYPE|UNIT|HELP) ({NAME}) (\S.*)")
SAMPLE = re.compile(rf"({NAME})\{{({LABEL}(?:,{LABEL})*)\}} ({NUMBER})")


def parse_openmetrics(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels. A strict reader of the part of OpenMetrics 1.0.0 that an export has.

    Each family is in one place: TYPE, UNIT and HELP once each, then its samples. A unit ends the name. Samples of a
    gauge have its name; those of an info end in _info and are 1. No sample is there twice. # EOF is the last line.
    """
    assert text.endswith("\n# EOF\n")
    samples, described, family, metadata = {}, set(), "", {}
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("#"):
            kind, name, value = METADATA.fullmatch(line).groups()
            if name != family:
                assert kind == "TYPE" and name not in described, line
                family, metadata = name, {}
                described.add(name)
            assert kind not in metadata, line
            metadata[kind] = value
            assert kind != "UNIT" or name.endswith(f"_{value}"), line
            assert kind != "TYPE" or value in ("gauge", "info"), line
        else:
            name, labels, number = SAMPLE.fullmatch(line).groups()
            assert name == family + ("_info" if metadata["TYPE"] == "info" else ""), line
            assert metadata["TYPE"] != "info" or float(number) == 1
            assert metadata["HELP"] and (name, labels) not in samples, line
            samples[name, labels] = float(number)
    return samples


def test_openmetrics_are_read_back(folder, document):
    """Protects a dashboard: every sample is of the document, in base units."""
    samples = parse_openmetrics(export.export_text(load_set(folder), "openmetrics"))
    (ddp,) = [group for group in document["groups"] if group["label"] == "ddp"]
    of_ddp = {name: value for (name, labels), value in samples.items() if 'label="ddp"' in labels}
    rate = ddp["images_per_s"]
    assert of_ddp["imagenet_bench_throughput_images_per_second"] == rate["value"]
    assert of_ddp["imagenet_bench_throughput_ci_low_images_per_second"] == rate["low"]
    assert of_ddp["imagenet_bench_throughput_ci_high_images_per_second"] == rate["high"]
    assert of_ddp["imagenet_bench_peak_memory_bytes"] == 900e6
    assert of_ddp["imagenet_bench_top1_ratio"] == 0.5
    assert (of_ddp["imagenet_bench_proof_passed"], of_ddp["imagenet_bench_proof_failed"]) == (1, 0)
    assert samples["imagenet_bench_last_run_timestamp_seconds", 'set="example"'] == 1795237200  # 2026-11-21T05:00 UTC
    runs = {labels: value for (name, labels), value in samples.items() if name == "imagenet_bench_runs"}
    assert runs['set="example",label="fsdp",strategy="fsdp",status="timeout"'] == 1
    skipped = [name for name, labels in samples if 'label="apex_ddp"' in labels and "throughput" in name]
    assert skipped == [], "what was not measured has no sample"


def test_labels_are_escaped():
    """Protects the lines after a strange name. Mutant: _escape returns its text."""
    line = openmetrics._sample("x", {"label": 'a"b\\c\nd', "other": ""}, 1.5)
    assert line == r'x{label="a\"b\\c\nd",other=""} 1.5' and SAMPLE.fullmatch(line)


@pytest.mark.parametrize(
    "text",
    [
        '# TYPE a gauge\n# HELP a x\na{b="c"} 1\n',
        '# TYPE a gauge\n# HELP a x\na{b="c"} 1\na{b="c"} 2\n# EOF\n',
        '# TYPE a_s gauge\n# UNIT a_s seconds\n# HELP a_s x\na_s{b="c"} 1\n# EOF\n',
        '# TYPE a gauge\n# HELP a x\nb{b="c"} 1\n# EOF\n',
        '# TYPE a gauge\n# HELP a x\na{b="c"d"} 1\n# EOF\n',
        '# TYPE a gauge\n# HELP a x\na{b="c"} nan\n# EOF\n',
        '# HELP a x\na{b="c"} 1\n# EOF\n',
    ],
)
def test_what_is_no_openmetrics_is_seen(text):
    """Shows that the reader above has teeth."""
    with pytest.raises((AssertionError, AttributeError)):
        parse_openmetrics(text)


# --- CI -----------------------------------------------------------------------------------------------------------


def test_the_action_gets_names_units_and_intervals(folder, document):
    """Protects the plots of github-action-benchmark: name, unit and value of each entry, as its tool reads them."""
    entries = json.loads(export.export_text(load_set(folder), "github-action-benchmark"))
    assert [each["name"] for each in entries] == ["single", "ddp", "ddp / single"]
    assert all({*each} == {"name", "unit", "value", "range", "extra"} for each in entries)
    assert [each["unit"] for each in entries] == ["images/s", "images/s", "ratio"]
    rate = next(each["images_per_s"] for each in document["groups"] if each["label"] == "ddp")
    assert entries[1]["value"] == rate["value"]
    low, high = map(float, re.fullmatch(r"95 % interval (\S+) to (\S+)", entries[1]["range"]).groups())
    assert (low, high) == pytest.approx((rate["low"], rate["high"]), rel=5e-3)


def cases(text: str, suite: str) -> dict[str, ElementTree.Element]:
    root = ElementTree.fromstring(text.encode())
    return {case.get("name"): case for case in root.find(f"testsuite[@name='{suite}']")}


def test_a_run_that_failed_is_a_test_that_failed(folder):
    """Protects a nightly job from a set that broke, and from one that did well at the second attempt. Mutants: a
    timeout passes; the first attempt counts; counts of the other suite."""
    text = export.export_text(load_set(folder), "junit")
    runs = cases(text, "runs")
    assert len(runs) == 12 and len(runs["ddp, round 2"]) == 0, "the last attempt counts"
    assert runs["ddp, round 2"].get("time") == "10.000"
    (failure,) = runs["fsdp, round 1"]
    assert (failure.tag, failure.get("type"), failure.get("message")) == ("failure", "timeout", "600 s without an end")
    (skipped,) = runs["apex_ddp"]
    assert (skipped.tag, skipped.get("message")) == ("skipped", SKIPPED)
    root = ElementTree.fromstring(text.encode())
    assert [root.get(name) for name in ("tests", "failures", "skipped")] == ["16", "1", "3"]
    assert [root.find("testsuite[@name='runs']").get(name) for name in ("tests", "failures", "skipped")] == [
        "12",
        "1",
        "1",
    ]


def test_a_proof_that_failed_is_a_test_that_failed(folder, tmp_path):
    """Protects from a strategy that computes another update. Mutant: every verdict but `skipped` passes."""
    write_set(tmp_path / "set")

    def spoiled(frame):
        wrong = frame.strategy == "ddp"
        frame.loc[wrong, ["verdict", "bit_identical", "max_relative_difference"]] = ["FAILED", "no", "0.25"]
        frame.loc[wrong, "reason"] = "layer1.weight"
        return frame

    change(tmp_path / "set", "equivalence", spoiled)
    proofs = cases(export.export_text(load_set(tmp_path / "set"), "junit"), "proofs")
    (failure,) = proofs["ddp"]
    assert failure.tag == "failure" and "layer1.weight" in failure.get("message") and len(proofs["single"]) == 0
    without = cases(export.export_text(load_set(folder), "junit"), "proofs")
    assert [case.tag for case in without["fsdp"]] == [case.tag for case in without["apex_ddp"]] == ["skipped"]


# --- foreign sets, and files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("export_format", FORMATS)
def test_a_hostile_set_controls_nothing(tmp_path, export_format):
    """Protects terminals, spreadsheets and parsers from somebody else's set. Mutant: plain returns its text."""
    evil = "=cmd|' /C calc'!A0\x1b]0;owned\x07<b>\"\\&\u202e"
    write_set(tmp_path / "set", device_name=evil, torch=evil, commit=evil)
    change(tmp_path / "set", "runs", lambda frame: frame.assign(reason=evil))
    text = export.export_text(load_set(tmp_path / "set"), export_format)
    assert not re.search(r"[^\n -~]", text), "control characters and what turns text around"
    values = re.findall(r'(?:"|=")(=[^"]*)"', text)
    assert values == [], "a value that starts a formula"
    if export_format == "openmetrics":
        parse_openmetrics(text)
    if export_format == "junit":
        ElementTree.fromstring(text)


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.name)
@pytest.mark.medium
def test_published_sets_are_exported(path):
    """Protects sets of every age."""
    results = load_set(path)
    timed = {group.label for group in results.timed_groups}
    samples = parse_openmetrics(export.export_text(results, "openmetrics"))
    rates = [labels for name, labels in samples if name == "imagenet_bench_throughput_images_per_second"]
    assert len(rates) == len(timed) > 8
    entries = json.loads(export.export_text(results, "github-action-benchmark"))
    assert timed <= {each["name"] for each in entries}
    assert ElementTree.fromstring(export.export_text(results, "junit").encode()).get("failures") == "0"


@pytest.mark.medium
def test_the_command_writes_a_whole_file_or_prints(folder, tmp_path, capsys):
    """Protects a file that a dashboard reads at any moment: an export that fails leaves the old one. Mutant: the file
    is opened before the text is made."""
    out = tmp_path / "set.prom"
    assert export.main(ExportOptions(folder, "openmetrics", out)) == 0
    before = out.read_text()
    assert before.endswith("# EOF\n") and capsys.readouterr().out == ""
    assert export.main(ExportOptions(folder, "openmetrics")) == 0 and capsys.readouterr().out == before
    twice = make_set(tmp_path / "twice")
    change(twice, "runs", lambda frame: type(frame)([*frame.to_dict("records"), frame.iloc[-3].to_dict()]))
    with pytest.raises(UserError, match="the set contradicts itself"):
        export.main(ExportOptions(twice, "openmetrics", out))
    assert out.read_text() == before and [path.name for path in tmp_path.iterdir() if path.is_file()] == ["set.prom"]
    with pytest.raises(UserError, match="name another file: --out"):
        export.main(ExportOptions(folder, "json", tmp_path / "no" / "such" / "folder"))


def test_a_set_without_runs_is_a_sentence(tmp_path, capsys):
    assert export.main(ExportOptions(tmp_path)) == 1
    assert capsys.readouterr().err.endswith("so there is nothing to export\n")


def test_a_comparison_names_its_two_sets(tmp_path, capsys):
    """Protects who exports what ./bench ab left: its rows are in the sets A and B. Mutant: "has no run" alone."""
    for name in ("A", "B"):
        write_set(tmp_path / name)
    assert export.main(ExportOptions(tmp_path)) == 1
    assert f"export one of the sets of this comparison: {tmp_path}/A or {tmp_path}/B\n" in capsys.readouterr().err


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        made = load_set(make_set(Path(temporary) / "example"))
        for made_format, name in FILES.items():
            (GOLDEN / name).write_text(export.export_text(made, made_format))
