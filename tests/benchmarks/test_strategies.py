"""Every strategy from end to end: real launchers, real ranks, real JPEGs, and the tables they leave."""

import ast
import json
import math
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support import NUM_VAL, ONE_PROCESS, REMEDY_WITHOUT, ROOT, RUNNABLE, STRATEGIES, run_strategy

from benchmarks import ddp_amp, ddp_compressed, fsdp
from benchmarks.common import exits
from benchmarks.common.config import Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import STORED_FIELDS, Layout
from scripts.memory.memory_check import layout_function
from scripts.results.settings import READERS

SMALL = {"arch": "resnet18", "image_size": 32, "global_batch": 8, "loader": "synthetic"}
SHARDS = {"num_shards": 2}  # on two ranks; the others are in one process
# Not taken from the scripts, whose rows are compared with it.
SHAPES = {name: {} if name in ONE_PROCESS else SHARDS for name in STRATEGIES} | {
    "model_parallel": {"num_stages": 2},
    "hybrid_parallel": SHARDS | {"num_stages": 2},
    "pipeline_parallel": {"num_stages": 2, "num_microbatches": 4},
    "ddp_compressed": SHARDS | {"compression": "bf16"},
    "local_sgd": SHARDS | {"period": 4},
    "ddp_compile": SHARDS | {"exact": False},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_data, tiny_config):
    """run(name): the row of one run of a strategy, and its result set."""
    folder, rows = tmp_path_factory.mktemp("results"), {}
    results = folder / "a set #1"  # in the URL of a file store a # would end the path

    def run_once(name: str) -> tuple[dict, Path]:
        if name not in rows:
            own = {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2}
            args = f"--account-steps 2 --checkpoint-dir {folder / 'kept'}"
            rows[name] = run_strategy(name, results, args, **own)
            shutil.rmtree(folder / "kept", ignore_errors=True)
        return rows[name], results

    return run_once


@pytest.mark.launches
@pytest.mark.parametrize("name", RUNNABLE)
def test_a_strategy_trains_and_leaves_every_table(run, tiny_config, name):
    row, results = run(name)
    assert (row["status"], row["launcher_exit_code"]) == ("ok", 0), row["reason"]
    assert row["val_samples"] == NUM_VAL and row["images_per_s"] > 0 and row["step_ms_p95"] >= row["step_ms_p50"] > 0
    assert 0 < row["train_loss"] < 100 and 0 < row["val_loss"] < math.inf and 0 <= row["acc1"] <= row["acc5"] <= 100
    assert row["world_size"] == (1 if name in ONE_PROCESS else 2) and row["threads_per_rank"] == 1
    assert row["parallel"] == ("" if name == "single" else "no" if name in ONE_PROCESS else "yes")
    reported = json.loads((results / "logs" / row["run_id"] / "summary.json").read_text())
    shape = {field: reported["met"][field] for field in STORED_FIELDS}
    assert shape == {field: getattr(Layout(**SHAPES[name]), field) for field in STORED_FIELDS}
    config = load_config(["--config", str(tiny_config)])
    layout = layout_function(name)(config, shape["num_shards"] * shape["num_stages"])
    for field in ("num_shards", "num_stages", "num_microbatches"):  # or the memory forecast is of another strategy
        assert getattr(layout, field) == shape[field]
    assert reported["met"]["precision"] == row["precision"] == ("bf16" if name == "ddp_amp" else "fp32")

    def rows_of(table):
        frame = read_table(results, table)
        return frame[frame["run_id"] == row["run_id"]]

    epochs, steps = rows_of("epochs"), rows_of("steps")
    images = [(0, "train", 40), (0, "val", NUM_VAL), (1, "train", 40), (1, "val", NUM_VAL)]
    assert [*zip(epochs["epoch"], epochs["phase"], epochs["images"], strict=True)] == images
    assert [*rows_of("windows")["images"]] == [16, 16]
    assert [*steps[steps["data_ms"].isna()]["step"]] == [1, 2, 3, 4]
    broken_down = steps[steps["data_ms"].notna()]
    assert {*broken_down["step"]} == {11, 12}  # after 2 epochs of 5 steps and one step to settle
    assert (row["compile_s"] > 0) == (name == "ddp_compile")
    assert rows_of("telemetry")["memory_used_mb"].min() > 0
    assert row["wall_s"] > rows_of("windows")["seconds"].sum()


@pytest.mark.launches
@pytest.mark.parametrize("name", REMEDY_WITHOUT)
def test_what_cannot_run_here_is_skipped_with_a_remedy(run, name):
    row, _ = run(name)
    assert (row["status"], row["launcher_exit_code"]) == ("skipped", 0)
    assert REMEDY_WITHOUT[name] in row["reason"]


@pytest.mark.launches
def test_a_checkpoint_goes_from_strategy_to_strategy(tmp_path, tiny_data, tiny_config):
    """Weights and momentum are written whole, whoever kept which part."""
    folder = tmp_path / "checkpoints"
    for epochs, name in enumerate(["ddp", "zero1", "fsdp", "pipeline_parallel", "local_sgd", "single"], 1):
        args = f"--no-augment --epochs {epochs} --resume --checkpoint-dir {folder}"
        row = run_strategy(name, tmp_path / "set", args, DATA=tiny_data, CONFIG=tiny_config, NPROC=2)
        assert row["status"] == "ok", row["reason"]
        state = torch.load(folder / f"{name}-1" / "last.pt", weights_only=True)
        assert state["epoch"] == epochs and len(state["optimizer"]["state"]) == 62
        (folder / f"{name}-1" / "last.pt").rename(folder / "last.pt")  # where the next one finds it
        shutil.rmtree(folder / f"{name}-1")
    shutil.rmtree(folder)


# --- options of some strategies -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "options", "named"),
    [
        (ddp_compressed.build, {"comm_hook": "powersgd"}, "--comm-hook"),
        (fsdp.build, {"shard_ranks": 3}, "shard_ranks 3"),
        (fsdp.build, {"norm": "sync"}, "norm sync"),
        (fsdp.build, {"cuda_graphs": True}, "--compile"),
    ],
)
def test_what_cannot_be_is_refused_before_the_ranks_meet(monkeypatch, build, options, named):
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=named):
        build(Config(**SMALL | options))


@pytest.mark.parametrize(("name", "field"), [("fsdp", "compile"), ("ddp_compile", "cuda_graphs")])
def test_a_strategy_refuses_an_option_that_would_do_nothing(name, field, monkeypatch):
    monkeypatch.setattr(sys, "argv", [name, f"--{field.replace('_', '-')}"])
    monkeypatch.setattr(exits, "run_and_exit", lambda main: main())  # which would end this process
    with pytest.raises(UserError, match=f"{field}=True"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


@pytest.mark.launches
def test_a_step_that_overflows_leaves_amp_what_it_had(monkeypatch, tmp_path):
    """The scaler skips the first step, and the fused update of the next one starts from momentum of zeros."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "RENDEZVOUS_FILE": str(tmp_path / "rendezvous")}
    for name, value in (variables | {"GLOO_SOCKET_IFNAME": "lo"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("benchmarks.common.rank.resolve_precision", lambda *_: "fp16")  # which a CPU would refuse
    strategy = ddp_amp.build(Config(**SMALL))
    images, target = torch.randn(8, 3, 32, 32), torch.zeros(8, dtype=torch.int64)
    before = [parameter.clone() for parameter in strategy.model.parameters()]
    torch.use_deterministic_algorithms(True)  # fills new memory with NaN
    try:
        strategy.step(1e30 * images, target)
        assert all(map(torch.equal, before, strategy.model.parameters()))
        for _ in range(4):  # while the scale comes down
            strategy.step(images, target)
    finally:
        torch.use_deterministic_algorithms(False)
        dist.destroy_process_group()
    assert not any(map(torch.equal, before, strategy.model.parameters()))
    assert all(parameter.isfinite().all() for parameter in strategy.model.parameters())


# --- which options a strategy reads ---------------------------------------------------------------------------------


def read_fields(path, seen) -> set[str]:
    """Also by functions that it calls with `config`."""
    tree = ast.parse(path.read_text())
    own = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "config"
    }
    called = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(ast.unparse(argument) == "config" for argument in node.args)
    }
    return own | {name for call in called for name in seen.get(call, ())}


def test_the_table_of_readers_is_what_scripts_read():
    """An option that is not read is no setting."""
    helpers: dict[str, set[str]] = {}
    ddp_options = r"\bconfig\.(\w+)|'(static_graph|gradient_as_bucket_view|broadcast_buffers)'"
    for path in (ROOT / "benchmarks" / "common").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found = re.findall(ddp_options, ast.unparse(node))
                helpers[node.name] = {name for names in found for name in names} & READERS.keys()
    for strategy in STRATEGIES:
        found = read_fields(ROOT / "benchmarks" / f"{strategy}.py", helpers) & READERS.keys()
        assert found == {name for name, strategies in READERS.items() if strategy in strategies}, strategy
