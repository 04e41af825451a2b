"""What `./bench report` measures before it writes: the parts that a set lacks, each in a process; signals end it all.

.venv/bin/python -m pytest tests/commands/test_measure_missing.py
"""

import signal
import subprocess
import sys
import time

import pytest
from result_sets import write_set
from support import ROOT, environment

from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows
from scripts.commands import measure_missing
from scripts.runner import preflight
from scripts.shared.commands import bench_command
from scripts.studies.hardware import Hardware, why_not_here
from scripts.studies.loaders.measure_loader_limit import measure_set

STUB = """
import os, sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from scripts.commands import measure_missing
from scripts.pages.study_sections import Measurement

def parts(results):
    say = [sys.executable, "-c", "import os; open(os.environ['SAID'], 'a').write(os.environ['WORD'])"]
    wait = [sys.executable, "-c", "import time; open({started!r}, 'w'); time.sleep(60)"]
    words = os.environ["PARTS"].split()
    command = {{"say": say, "fail": ["false"], "wait": wait}}
    return [Measurement(command[word], {{"WORD": word, "SAID": {said!r}}}) for word in words]

measure_missing.missing_measurements = parts
sys.exit(measure_missing.measure(Path({results!r})))
"""


@pytest.fixture
def a_set(tmp_path):
    results = tmp_path / "a set"
    results.mkdir()
    append_rows(results, "runs", [{"run_id": "single-1", "strategy": "single", "repeat": 1, "status": "ok"}])
    return results


def start(results, parts) -> subprocess.Popen:
    """`measure` with other parts, in a process of its own."""
    names = {name: str(results.parent / name) for name in ("said", "started")}
    code = STUB.format(root=str(ROOT), results=str(results), **names)
    env = environment(PARTS=parts)
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def test_only_what_is_missing_is_measured(a_set, monkeypatch):
    """Protects minutes: a part whose table is there is left out; one rank has no scaling to show."""
    monkeypatch.setenv("NUM_GPUS", "0")
    monkeypatch.setenv("NPROC", "4")
    monkeypatch.setenv("STRATEGY", "ddp")
    proof, loader, scaling = measure_missing.missing_measurements(a_set)
    assert "scripts.studies.loaders.measure_loader_limit" in loader.command and "scripts.proof.verify" in proof.command
    assert scaling.command == ["launchers/all.sh", "scaling"] and scaling.variables["RANKS"] == "1 2 4"
    assert scaling.variables["RESULTS"] == str(a_set / "scaling") and proof.variables["RESULTS"] == str(a_set)
    append_rows(a_set, "loader", [{"run_id": "x"}])
    assert measure_missing.missing_measurements(a_set) == [proof, scaling]
    assert "--missing" in proof.command  # which runs are not proved yet, verify knows
    monkeypatch.setenv("NPROC", "1")
    assert measure_missing.missing_measurements(a_set) == [proof]


def test_no_loader_is_measured_of_runs_that_read_nothing(a_set, monkeypatch):
    """Protects make report of a set of synthetic images from ending with the loader probe's refusal."""
    for name, value in (("NUM_GPUS", "0"), ("NPROC", "1")):
        monkeypatch.setenv(name, value)
    row = {"strategy": "single", "repeat": 1, "status": "ok", "loader": "synthetic"}
    append_rows(a_set, "runs", [row | {"run_id": "single-2"}])
    assert len(measure_missing.missing_measurements(a_set)) == 2  # the other run's loader is not synthetic
    (a_set / "runs.csv").unlink()
    append_rows(a_set, "runs", [row | {"run_id": "single-1"}])
    (proof,) = measure_missing.missing_measurements(a_set)
    assert "scripts.proof.verify" in proof.command


def test_nothing_is_measured_beside_a_published_set(tmp_path, monkeypatch):
    """Protects published numbers from those of another machine."""
    results = tmp_path / "published" / "a set"
    results.mkdir(parents=True)
    append_rows(results, "runs", [{"run_id": "single-1", "status": "ok"}])
    (results / preflight.MARK).write_text("{}")
    monkeypatch.setattr(measure_missing, "missing_measurements", lambda results_folder: pytest.fail("measured"))
    with pytest.raises(UserError, match="is published, and nothing is measured into it; MEASURE=no draws its report"):
        measure_missing.measure(results)


def test_nothing_is_measured_on_other_hardware(tmp_path, monkeypatch, capsys):
    """Protects a set from GPUs from the figures of a login node's CPU: nothing starts, and the command for the right
    machine is printed. Mutant: no look at the hardware."""
    results = write_set(tmp_path / "a set", device="cuda", device_name="NVIDIA A100-SXM4-40GB")
    monkeypatch.setenv("NUM_GPUS", "4")  # which a login node has, where somebody plans for the nodes
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert measure_missing.measure(results) == 0
    said = capsys.readouterr().out
    assert "it was measured on a GPU, NVIDIA A100-SXM4-40GB, and this is the CPU" in said
    assert f"on such a machine, in {ROOT}: {bench_command('report', results=results)}" in said
    assert "scripts.proof.verify" in said
    assert {path: path.read_bytes() for path in results.rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match="this is the CPU"):
        measure_set(results)


@pytest.mark.parametrize(
    "measured, here, allowed",
    [
        ([], ("cpu", "AMD EPYC"), True),  # an old set that does not say
        ([("cpu", "AMD EPYC")], ("cpu", "AMD EPYC"), True),
        ([("cpu", "AMD EPYC")], ("cpu", "Intel Xeon"), False),
        ([("cuda", "NVIDIA A100")], ("cpu", "AMD EPYC"), False),
        ([("cuda", "NVIDIA A100")], ("cuda", "NVIDIA H100"), False),
        ([("cuda", "NVIDIA A100 + NVIDIA H100")], ("cuda", "NVIDIA H100"), True),
        ([("cpu", "AMD EPYC"), ("cuda", "NVIDIA A100")], ("cuda", "NVIDIA A100"), True),
    ],
)
def test_a_set_stays_on_its_hardware(measured, here, allowed):
    """Protects comparisons within a set. Mutant: kinds alone are compared."""
    why = why_not_here({Hardware(*each) for each in measured}, Hardware(*here))
    assert (why == "") == allowed, why


def test_a_part_that_fails_leaves_a_gap_and_the_others_go_on(a_set):
    """Protects the parts that can be measured, and the exit code that says that one could not."""
    process = start(a_set, "fail say")
    assert process.wait(60) == 1 and (a_set.parent / "said").read_text() == "say"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_all(a_set, signum, code):
    """Protects Ctrl-C: the part in progress is ended, and no other starts."""
    process = start(a_set, "wait say")
    while not (a_set.parent / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signum)
    assert process.wait(60) == code and not (a_set.parent / "said").exists()
