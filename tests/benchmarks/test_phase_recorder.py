"""Where the time of a step and of a run goes: nothing is left out, and a planted delay lands where it belongs.

.venv/bin/python -m pytest tests/benchmarks/test_phase_recorder.py
"""

import dataclasses
import json
import subprocess
import sys
from importlib.util import find_spec
from statistics import median

import pytest
import torch
from support import ROOT, environment, run_strategy
from torchvision.models import ResNet18_Weights, ResNet50_Weights, ResNet152_Weights

from benchmarks import single
from benchmarks.common import phases as phase_recorder
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.model import flops_per_image
from benchmarks.common.rank import CPU, Rank
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import Exchange, Layout, Strategy
from scripts.studies.allreduce.launch_ranks import horovodrun_command, torchrun_command

PARTS = [f"{phase}_ms" for phase in (*phase_recorder.MARKED_PHASES, "exposed_comm")]
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
DDP = pytest.param("ddp", marks=[pytest.mark.slow])
HOROVOD = pytest.param("horovod_ddp", marks=[without_horovod, pytest.mark.slow])
# ResNet-18 with 4 classes: parameters that are sent and received, and running statistics that rank 0 sends
GRADIENT_BYTES, BUFFER_BYTES = 2 * 4 * 11_178_564, 4 * 9_600


@pytest.fixture(scope="module")
def planted(tiny_data, tiny_config, tmp_path_factory):
    """planted(name): what tests/planted.py reports of a strategy, run once for all tests of this file."""
    reports = {}

    def report_of(name: str) -> dict:
        if name not in reports:
            places = ["", *PLACES] if name == "single" else ["", "loader", "forward", "exchange"]
            start, variables = torchrun_command(2, tmp_path_factory.mktemp("ranks"))
            starters = {"single": [sys.executable], "horovod_ddp": [*horovodrun_command(2), sys.executable]}
            command = [*starters.get(name, start), ROOT / "tests" / "planted.py", name, json.dumps(places)]
            command.append(str(DELAY_MS))
            flags = ["--config", tiny_config, "--data", tiny_data, "--epochs", "1", "--windows", "1"]
            command += [*flags, "--account-steps", "4"]
            loopback = variables | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1, "PYTHONPATH": ROOT}
            reports[name] = subprocess.run(
                command, cwd=ROOT, env=environment(**loopback), capture_output=True, text=True, timeout=300
            )
        done = reports[name]
        assert done.returncode == 0, done.stdout + done.stderr
        line = next(line for line in done.stdout.splitlines() if "planted:" in line)
        return json.loads(line.split("planted:", 1)[1])

    return report_of


CASES = [
    *(("single", place) for place in PLACES if place != "exchange"),
    *((name, place) for name in (DDP, HOROVOD) for place in ("loader", "forward", "exchange")),
]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(getattr(name, "values", [name])[0], place, marks=getattr(name, "marks", ()))
        for name, place in CASES
    ],
)
def test_a_planted_delay_lands_in_its_part_and_nowhere_else(planted, name, place):
    """Protects the meaning of every column. Each part must see all of its own delay and little of the others': delays
    in real ranks, compared with the same process without them. The clock is planted.py's."""
    report = planted(name)
    grown = {
        part: median(row[part] for row in report[place]) - median(row[part] for row in report[""]) for part in PARTS
    }
    assert grown.pop(PLACES[place]) > 0.9 * DELAY_MS
    assert max(grown.values()) < 0.1 * DELAY_MS


@pytest.mark.medium
@pytest.mark.parametrize("name", ["single", DDP, HOROVOD])
def test_the_parts_sum_to_the_step(planted, name):
    """Protects the closed account: parts are added up from their own marks, the step from its first and last."""
    report = planted(name)
    rows = [row for place in ["", *PLACES] for row in report.get(place, [])]
    assert len(rows) >= 4 * 3 * 4
    for row in rows:
        assert sum(row[part] for part in PARTS) == pytest.approx(row["step_ms"], rel=0.02)
    # What has no name stays small: a forgotten phase would be in here.
    assert median(row["other_ms"] for row in report[""]) < 0.1 * median(row["step_ms"] for row in report[""])


@pytest.mark.parametrize("name", [DDP, HOROVOD])
def test_the_step_without_exchange_exchanges_nothing(planted, name):
    """Protects the subtraction: a twin that still sent gradients, or buffers, would make communication look cheap.

    And the step with exchange must still do all of it, which for DDP includes a broadcast of buffers. A few bytes
    are the end of the sum that has the ranks start together. Horovod's ranks go on telling each other every
    millisecond that they have nothing to send: on a busy machine, where a step takes seconds, a hundredth of what the
    gradients need.
    """
    report = planted(name)
    assert min(report["bytes with"]) > GRADIENT_BYTES + (BUFFER_BYTES if name == "ddp" else 0)
    assert max(report["bytes without"]) < (1000 if name == "ddp" else GRADIENT_BYTES / 10)
    assert all(summary["comm_ms"] > 0 for summary in report["summary"])


def test_one_device_has_nothing_to_exchange_and_several_must_say_how(monkeypatch):
    """Protects the difference between none (0) and not known (empty)."""
    phases = dict.fromkeys([*phase_recorder.MARKED_PHASES, "step"], 1.0)
    monkeypatch.setattr(phase_recorder, "_phases_ms", lambda clock, marks: phases)
    config, rank = Config(account_steps=2), Rank()
    strategy = Strategy(
        config,
        rank,
        model=None,
        optimizer=torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1),
        train=None,
        val=None,
        criterion=torch.nn.CrossEntropyLoss(),
        step=None,
        layout=Layout(),
    )

    def taken(rank):
        return phase_recorder.break_down_steps(dataclasses.replace(strategy, rank=rank), lambda batches, lr: None)

    rows, summary = taken(rank)
    assert [row["exposed_comm_ms"] for row in rows] == [0, 0] and summary == {"exposed_comm_ms": 0}
    rows, summary = taken(Rank(devices=(CPU, CPU)))  # in one process
    assert [row["exposed_comm_ms"] for row in rows] == [None, None] and summary == {}
    monkeypatch.setattr(phase_recorder, "gather", lambda values, rank, all_reduce: torch.tensor(values).repeat(2, 1))
    rows, summary = taken(Rank(world_size=2))
    assert [row["exposed_comm_ms"] for row in rows] == [None] * 4 and summary == {}
    assert [(row["rank"], row["number"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [row["wait_ms"] for row in rows] == [1] * 4  # a pipeline's, which is marked
    # as FSDP's is, and as local SGD's, whose communication can be sent alone
    for communicate, known in ((None, {}), (lambda: None, {"comm_ms": 1})):
        strategy = dataclasses.replace(strategy, exchange=Exchange(communicate), waits_within_phases=True)
        rows, summary = taken(Rank(world_size=2))
        assert [(row["wait_ms"], row["forward_ms"]) for row in rows] == [(None, 1)] * 2 and summary == known


@pytest.mark.medium
def test_the_account_leaves_no_hook_and_no_weight_behind(tiny_data, tiny_config, monkeypatch):
    """Protects the results: an account after the run changes neither them nor what the process does later."""
    weights = []

    def watched(strategy, *rest):
        optimizer, model = strategy.optimizer, [*strategy.model.parameters()]
        before = [parameter.clone() for parameter in model]
        result = phase_recorder.break_down_steps(strategy, *rest)
        weights.extend(zip(before, model, strict=True))
        assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
        assert not strategy.criterion._forward_hooks and not torch.nn.modules.module._has_any_global_hook()
        return result

    monkeypatch.setattr("benchmarks.common.engine.break_down_steps", watched)
    fit(single.build(load_config(["--config", str(tiny_config), "--data", str(tiny_data), "--account-steps", "2"])))
    assert weights and all(torch.equal(before, after) for before, after in weights)


@pytest.mark.medium
@pytest.mark.parametrize("name", ["ddp", pytest.param("single", marks=pytest.mark.slow)])
def test_the_rows_of_a_run(name, tmp_path, tiny_data, tiny_config):
    """Protects the way into the tables, and the account of the wall clock: parts agree with what was timed."""
    row = run_strategy(name, tmp_path, "--account-steps 3", DATA=tiny_data, CONFIG=tiny_config, NPROC=2)
    assert row["status"] == "ok", row["reason"]
    steps, wall = read_table(tmp_path, "steps"), read_table(tmp_path, "wall")
    accounted = steps[steps["data_ms"].notna()]
    assert list(accounted["step"]) == [11, 12, 13]  # after 2 epochs of 5 steps and one step to settle
    assert list(steps[steps["data_ms"].isna()]["step"]) == [1, 2, 3, 4]
    assert accounted[PARTS].sum(axis=1).to_numpy() == pytest.approx(accounted["step_ms"].to_numpy(), rel=0.02)
    assert row["exposed_comm_ms"] == pytest.approx(accounted["exposed_comm_ms"].mean())
    if name == "ddp":
        assert row["overlap_pct"] == pytest.approx(100 * min(1, max(0, 1 - row["exposed_comm_ms"] / row["comm_ms"])))
    assert wall["seconds"].sum() == pytest.approx(row["wall_s"])
    # Each part encloses what another clock has timed of it, however long the machine lets both wait in between.
    seconds = wall.set_index("part")["seconds"]
    epochs = read_table(tmp_path, "epochs").groupby("phase")["seconds"].sum()
    assert seconds["timed windows"] >= read_table(tmp_path, "windows")["seconds"].sum()
    assert seconds[["warm-up", "timed windows", "training outside windows"]].sum() >= epochs["train"]
    assert seconds["evaluation"] >= epochs["val"]
    assert seconds["step account"] > accounted["step_ms"].sum() / 1000


@pytest.mark.parametrize(
    ("arch", "weights"),
    [("resnet18", ResNet18_Weights), ("resnet50", ResNet50_Weights), ("resnet152", ResNet152_Weights)],
)
def test_flops_agree_with_those_that_torchvision_publishes(arch, weights):
    """Protects the roofline. torchvision counts multiply-adds of a forward pass, in units of 1e9."""
    published = weights.IMAGENET1K_V1.value.meta["_ops"]
    assert flops_per_image(Config(arch=arch), 1000) == pytest.approx(3 * 2 * published * 1e9, rel=0.002)


def test_marks_book_the_time_before_them():
    """Protects the sums that everything above rests on, without a machine's noise."""
    clock = Clock([torch.device("cpu")])
    marks = [("", 1.0), ("other", 1.5), ("data", 2.0), ("other", 2.25), ("backward", 4.0), ("backward", 5.0)]
    taken = phase_recorder._phases_ms(clock, marks)
    assert taken == {
        "data": 500,
        "copy": 0,
        "forward": 0,
        "backward": 2750,
        "wait": 0,
        "optimizer": 0,
        "other": 750,
        "step": 4000,
    }
