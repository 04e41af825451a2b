"""`make verify` passes the suite as it is, and fails on each fault that it is there to find.

A fault is planted in a copy of the suite, by replacing text that must be there, and verify runs as a user's would:
real launchers, real ranks.

    .venv/bin/python -m pytest tests/proof/test_verify.py
"""

import dataclasses
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support import environment

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.results import read_table
from scripts.probe.measured import MEASURED, add_rows
from scripts.proof.reference import Shape, global_batches, train_reference
from scripts.proof.verify import Options, largest_difference, main

CPU = torch.device("cpu")

DDP_WRAP = "    optimizer = build_optimizer(config, net)\n"
SUM_HOOK = """
    def summed(_, bucket):
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
    model.register_comm_hook(None, summed)
"""
EARLY_HOOK = """
    import torch
    def early(_, bucket):
        ready = torch.futures.Future()
        ready.set_result(bucket.buffer().clone())  # the step goes on with this while the sum is under way
        dist.all_reduce(bucket.buffer(), async_op=True)
        return ready
    model.register_comm_hook(None, early)
"""
FAULTS = {
    "no all-reduce": ("ddp", "benchmarks/ddp.py", "output = model(images)", "output = net(images)"),
    "summed, not averaged": ("ddp", "benchmarks/ddp.py", DDP_WRAP, DDP_WRAP + SUM_HOOK),
    "all ranks on one shard": (
        "ddp",
        "benchmarks/common/data.py",
        "shard = worker.rank if shard is None else shard",
        "shard = 0",
    ),
    "no set_epoch": ("ddp", "benchmarks/common/engine.py", "self.train.set_epoch(epoch, first_step)", "pass"),
    "step before the reduction": ("ddp", "benchmarks/ddp.py", DDP_WRAP, DDP_WRAP + EARLY_HOOK),
    "hidden step of broadcast_optimizer_state": (
        "horovod_ddp",
        "benchmarks/horovod_ddp.py",
        "    def step(images, target):",
        "    hvd.broadcast_optimizer_state(optimizer, root_rank=0)\n    def step(images, target):",
    ),
}


def verify(checkout: Path, data: Path, results: Path, *flags: str, **variables):
    """Run scripts.proof.verify in a checkout: (exit code, its output, rows of equivalence.csv by strategy)."""
    command = [sys.executable, "-m", "scripts.proof.verify", "--results", str(results), *flags]
    env = environment(DATA=data, NPROC=2, SLURM_CONF="/dev/null", **variables)
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=300)
    print(done.stdout + done.stderr)  # pytest shows it if the test fails
    rows = {row["strategy"]: row for row in read_table(results, "equivalence").to_dict("records")}
    return done.returncode, done.stdout + done.stderr, rows


def test_the_suite_as_it_is_agrees_to_the_last_bit(checkout, tiny_data, tmp_path):
    """Protects the proof from failing for no reason: without this, the faults below could be found by anything."""
    runnable = [name for name in ("ddp", "horovod_ddp") if name != "horovod_ddp" or find_spec("horovod")]
    flags = ["--steps", "6", "--strategies", " ".join([*runnable, "apex_ddp"])]
    code, output, rows = verify(checkout, tiny_data, tmp_path / "a set", *flags)
    assert code == 0
    for name in runnable:
        row = rows[name]
        assert (row["verdict"], row["bit_identical"], row["max_relative_difference"]) == ("ok", "yes", 0)
        assert (row["steps"], row["tolerance"], row["world_size"]) == (6, 0, 2)
        assert f"{name} " in output
    assert rows["apex_ddp"]["verdict"] == "skipped" and "NVIDIA GPUs" in rows["apex_ddp"]["reason"]
    assert not list((tmp_path / "a set" / "verify").glob("weights-*"))  # 90 MB a strategy


FAST = "no all-reduce"


@pytest.mark.parametrize(
    "fault", [fault if fault == FAST else pytest.param(fault, marks=pytest.mark.slow) for fault in FAULTS]
)
def test_a_planted_fault_is_found(fault, checkout, tiny_data, tmp_path):
    """Protects the claim that verify tells these faults: the run itself ends well, and only the weights are wrong."""
    strategy, name, text, replacement = FAULTS[fault]
    if strategy == "horovod_ddp" and not find_spec("horovod"):
        pytest.skip("needs Horovod: scripts/setup/install_horovod.sh")
    copy = Path(shutil.copytree(checkout, tmp_path / "faulty"))
    source = (copy / name).read_text()
    assert source.count(text) == 1, f"{name} no longer holds the text in which this test plants its fault"
    (copy / name).write_text(source.replace(text, replacement))
    code, output, rows = verify(copy, tiny_data, tmp_path / "a set", "--steps", "6", "--strategies", strategy)
    assert code == 1 and "FAILED: not the reference's weights" in output
    assert rows[strategy]["verdict"] == "failed" and rows[strategy]["bit_identical"] == "no"
    assert rows[strategy]["max_relative_difference"] > 1e-4
    size = {"ranks": int(rows[strategy]["world_size"]), "steps": int(rows[strategy]["steps"])}
    size["max_relative_difference"] = rows[strategy]["max_relative_difference"]
    add_rows(MEASURED / "planted.csv", [{"fault": fault, "strategy": strategy, **size}])


@pytest.mark.parametrize(
    "options, variables, message",
    [
        (Options(steps=5), {}, "steps is 5, but must be an even number"),
        (Options("dpp"), {}, "did you mean ddp?"),
        (Options(), {"NPROC": "5"}, "global_batch 24 does not divide by NPROC=5 ranks"),
        (Options(), {"NPROC": "two"}, "NPROC is 'two'"),
        (Options(), {"DATA": "/nowhere"}, "'/nowhere' does not exist; set DATA"),
    ],
)
def test_mistakes_are_refused_before_any_run(options, variables, message, tiny_data, tmp_path, monkeypatch):
    for name in ("CONFIG", "ARGS", "NPROC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"DATA": str(tiny_data)} | variables).items():
        monkeypatch.setenv(name, value)
    with pytest.raises((UserError, ValueError), match=re.escape(message)):
        main(dataclasses.replace(options, results=tmp_path / "a set"))
    assert not (tmp_path / "a set").exists()


def test_a_mistake_is_one_line_and_exit_code_2(checkout, tiny_data, tmp_path):
    code, output, rows = verify(checkout, tiny_data, tmp_path / "a set", "--strategies", "dpp")
    assert (code, output, rows) == (2, "error: no strategy 'dpp'; did you mean ddp?\n", {})


def test_a_difference_is_relative_and_never_lost():
    """Protects the verdict: what cannot be compared counts as different, not as equal."""
    expected = {"a": torch.tensor([1.0, -4.0]), "b": torch.tensor([10.0]), "zero": torch.zeros(2)}
    same = {name: tensor.clone() for name, tensor in expected.items()}
    assert largest_difference(same, expected)[0] == 0
    assert largest_difference(same | {"a": torch.tensor([1.0, -3.0])}, expected) == (0.25, "a")
    assert largest_difference(same | {"b": torch.tensor([float("nan")])}, expected) == (float("inf"), "b")
    assert largest_difference(same | {"zero": torch.tensor([0.0, 1e-30])}, expected) == (float("inf"), "zero")
    assert largest_difference(same | {"a": torch.ones(1)}, expected) == (float("inf"), "a")
    assert largest_difference(same | {"c": torch.ones(1)}, expected) == (float("inf"), "c")


def test_the_reference_deals_every_image_in_laps_and_anew_each_epoch():
    """Protects the reference's independence: its order is a permutation by itself, and another one each epoch."""
    config = Config(global_batch=8, steps=10)
    first, second = ([*global_batches(config, 40, epoch)] for epoch in (0, 1))
    assert len(first) == 10 and first != second
    laps = [index for batch in first for index in batch]
    assert sorted(laps[:40]) == sorted(laps[40:]) == [*range(40)] and laps[:40] != laps[40:]


def test_the_reference_tells_the_shapes_of_updates_apart(tiny_data):
    """Protects the table of shapes: one shard, two shards and two micro-batches are three different trainings."""
    config = Config(
        data=str(tiny_data), arch="resnet18", image_size=32, global_batch=8, steps=2, augment=False, lr_batch=8
    )
    one, two, parts = (train_reference(config, shape, CPU) for shape in (Shape(), Shape(2), Shape(1, 2)))
    assert largest_difference(one, two)[0] > 0.01 and largest_difference(one, parts)[0] > 0.01
    # both see the halves by turns, but two shards keep the first one's statistics, and micro-batches have both's
    assert two["bn1.num_batches_tracked"] == 2 and parts["bn1.num_batches_tracked"] == 4
    assert torch.equal(train_reference(config, Shape(2), CPU)["fc.weight"], two["fc.weight"])
    frozen = train_reference(dataclasses.replace(config, lr=0.0), Shape(), CPU)
    assert largest_difference({"w": frozen["fc.weight"]}, {"w": one["fc.weight"]})[0] > 0
