"""Where the time of a step goes: nothing is left out, and a planted delay lands where it belongs."""

import json
import subprocess
import sys
from importlib.util import find_spec
from statistics import median

import pytest
import torch
from support import ROOT, environment

from benchmarks import single
from benchmarks.common import phases
from benchmarks.common.config import load_config
from benchmarks.common.engine import fit
from scripts.studies.allreduce.launch_ranks import horovodrun_command, torchrun_command

PARTS = [f"{phase}_ms" for phase in (*phases.MARKED_PHASES, "exposed_comm")]
DELAY_MS = 1000  # nobody waits for it: planted.py's clock moves on. A step takes 40 ms of processor time
PLACES = {
    "loader": "data_ms",
    "copy": "copy_ms",
    "forward": "forward_ms",
    "backward": "backward_ms",
    "optimizer": "optimizer_ms",
    "other": "other_ms",
    "exchange": "exposed_comm_ms",
}
without_horovod = pytest.mark.skipif(not find_spec("horovod"), reason="scripts/setup/horovod.sh has not run")
HOROVOD = pytest.param("horovod_ddp", marks=without_horovod)
# ResNet-18 with 4 classes: parameters that are sent and received, and running statistics that rank 0 sends
GRADIENT_BYTES, BUFFER_BYTES = 2 * 4 * 11_178_564, 4 * 9_600


@pytest.fixture(scope="module")
def planted(tiny_data, tiny_config, tmp_path_factory):
    """planted(name): what tests/planted.py reports of a strategy."""
    reports = {}

    def report_of(name: str) -> dict:
        if name not in reports:
            places = ["", *PLACES][:-1] if name == "single" else ["", "loader", "forward", "exchange"]
            start, variables = torchrun_command(2, tmp_path_factory.mktemp("ranks"))
            starters = {"single": [sys.executable], "horovod_ddp": [*horovodrun_command(2), sys.executable]}
            command = [*starters.get(name, start), ROOT / "tests" / "planted.py", name, json.dumps(places), DELAY_MS]
            command += ["--config", tiny_config, "--data", tiny_data, "--epochs", 1, "--windows", 1]
            env = environment(**variables, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=1, PYTHONPATH=ROOT)
            command = [str(word) for word in (*command, "--account-steps", 4)]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stdout + done.stderr
            line = next(line for line in done.stdout.splitlines() if "planted:" in line)
            reports[name] = json.loads(line.split("planted:", 1)[1])
        return reports[name]

    return report_of


@pytest.mark.launches
@pytest.mark.parametrize("name", ["single", "ddp", HOROVOD])
def test_a_planted_delay_lands_in_its_part_and_nowhere_else_and_the_parts_sum_to_the_step(planted, name):
    report = planted(name)
    for place in PLACES.keys() & report.keys():
        grown = {part: median(row[part] for row in report[place]) for part in PARTS}
        grown = {part: ms - median(row[part] for row in report[""]) for part, ms in grown.items()}
        assert grown.pop(PLACES[place]) > 0.9 * DELAY_MS, place
        assert max(grown.values()) < 0.1 * DELAY_MS, place
    for row in [row for place in ["", *PLACES] for row in report.get(place, [])]:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_ms"], rel=0.02)
    # What has no name stays small: a forgotten phase would be in here.
    assert median(row["other_ms"] for row in report[""]) < 0.1 * median(row["step_ms"] for row in report[""])


@pytest.mark.launches
@pytest.mark.parametrize("name", ["ddp", HOROVOD])
def test_the_step_without_exchange_exchanges_nothing(planted, name):
    report = planted(name)
    assert min(report["bytes with"]) > GRADIENT_BYTES + (BUFFER_BYTES if name == "ddp" else 0)
    assert max(report["bytes without"]) < (1000 if name == "ddp" else GRADIENT_BYTES / 10)


def test_the_step_breakdown_leaves_no_weight_behind(tiny_data, tiny_config, monkeypatch):
    """And one device has nothing to exchange: 0, and not unknown."""
    weights, exposed = [], []

    def watched(strategy, *rest):
        model = [*strategy.model.parameters()]
        before = [parameter.clone() for parameter in model]
        rows, summary = phases.break_down_steps(strategy, *rest)
        weights.extend(zip(before, model, strict=True))
        exposed.extend([summary["exposed_comm_ms"], *(row["exposed_comm_ms"] for row in rows)])
        return rows, summary

    monkeypatch.setattr("benchmarks.common.engine.break_down_steps", watched)
    fit(single.build(load_config(["--config", str(tiny_config), "--data", str(tiny_data), "--account-steps", "2"])))
    assert weights and all(torch.equal(before, after) for before, after in weights) and exposed == [0, 0, 0]
