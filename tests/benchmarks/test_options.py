"""Options of every strategy: where they arrive, who refuses them, and that a run with them trains the same.

.venv/bin/python -m pytest tests/benchmarks/test_options.py
"""

import contextlib
import dataclasses
import math
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from support import ROOT, environment, make_run_folder, run_strategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import exits as exit_codes
from benchmarks.common import machine
from benchmarks.common.config import Config
from benchmarks.common.engine import time_first_step
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.exchange import ddp_exchange, ddp_options
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.run_folder import RUN_DIR_VARIABLE
from benchmarks.common.strategy import Layout, resolve_layout
from benchmarks.common.summary import Record
from scripts.results.settings import requested_settings, settings_hash

SMALL = Config(arch="resnet18", image_size=32, global_batch=4)
ADDED = ("compile", "cuda_graphs", "fused", "cudnn_benchmark", "cudnn_deterministic", "static_graph")
ADDED += ("gradient_as_bucket_view", "broadcast_buffers")


def with_options(**options) -> Config:
    return dataclasses.replace(SMALL, **options)


@pytest.mark.parametrize("name", ADDED)
def test_an_option_makes_another_run(name):
    """Protects comparisons: runs with and without it are never pooled."""
    other = with_options(**{name: not getattr(SMALL, name)})
    assert settings_hash(requested_settings(SMALL, "ddp", 2, 1, 1, "")) != settings_hash(
        requested_settings(other, "ddp", 2, 1, 1, "")
    )


@pytest.mark.medium
def test_options_arrive_where_they_act():
    """Protects the ablation from options that change a label only."""
    assert build_model(with_options(compile=True), 4)._compiled_call_impl is not None
    assert build_model(SMALL, 4)._compiled_call_impl is None
    model = build_model(SMALL, 4)
    assert build_optimizer(with_options(fused=True), model).defaults["fused"]
    assert not build_optimizer(SMALL, model).defaults["fused"]
    options = {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 3.0, "broadcast_buffers": False}
    assert ddp_options(with_options(**options)) == options
    defaults = {"static_graph": False, "gradient_as_bucket_view": False}
    assert ddp_options(SMALL) == defaults | {"bucket_cap_mb": None}


@pytest.mark.parametrize("broadcast", [True, False])
def test_buffers_are_broadcast_where_they_are_wanted_and_a_step_without_communication_has_none(tmp_path, broadcast):
    """Protects broadcast_buffers, and the steps after one without communication. Mutants: DDP's default; True
    restored, whatever it was."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model = DistributedDataParallel(module, **ddp_options(with_options(broadcast_buffers=broadcast)))
        sent = []
        model._sync_buffers = lambda: sent.append(1)
        without = ddp_exchange(model).without
        for context in (contextlib.nullcontext, without, contextlib.nullcontext):
            with context():
                model(torch.randn(4, 2)).sum().backward()
        assert len(sent) == (2 if broadcast else 0)
        for as_it_was in (True, False):
            model.require_forward_param_sync = as_it_was
            with without():
                pass
            assert model.require_forward_param_sync == as_it_was
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("option", ["compile", "fused"])
def test_what_rounds_otherwise_is_not_expected_to_the_last_bit(option):
    """Protects the proof from calling fused kernels wrong, and plain ones right within a tolerance only."""
    assert resolve_layout(SMALL, Layout()).exact and not resolve_layout(with_options(**{option: True}), Layout()).exact


def test_cuda_graphs_are_refused_where_there_are_none():
    for options in ({"cuda_graphs": True}, {"cuda_graphs": True, "compile": True}):
        with pytest.raises(UserError, match="goes with --compile, and not on a CPU"):
            prepare(with_options(**options), Rank())


def test_any_strategy_without_a_compiler_says_so(monkeypatch, tmp_path):
    """Protects machines without g++: a skipped row with the remedy, in place of a library's stack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="needs a C\\+\\+ compiler, and there is none; install g"):
        prepare(with_options(compile=True), Rank())


def test_a_gpu_needs_a_c_compiler_and_triton_too(monkeypatch, tmp_path):
    """Protects GPUs whose image has g++ alone: Triton would end in a stack in the first step."""
    for name in ("g++", "tool"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(machine, "Path", lambda *parts: SimpleNamespace(exists=lambda: True))  # Python's headers
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert not machine.missing_compiler(on_gpu=False)
    assert "needs a C compiler" in machine.missing_compiler(on_gpu=True)
    monkeypatch.setenv("CC", "tool")
    assert "pip install triton" in machine.missing_compiler(on_gpu=True)
    monkeypatch.setattr(machine, "find_spec", lambda name: name)
    assert not machine.missing_compiler(on_gpu=True)


@pytest.mark.parametrize(
    "name, field",
    [
        *[(name, "compile") for name in ("fsdp", "model_parallel", "pipeline_parallel", "hybrid_parallel")],
        *[(name, "compile") for name in ("dataparallel", "apex_ddp", "ddp_compile")],
        ("ddp_compile", "cuda_graphs"),
        ("fsdp", "fused"),  # which would end in a stack: DTensor has no rule for it
    ],
)
def test_a_strategy_refuses_an_option_that_would_do_nothing(name, field, monkeypatch):
    """Protects rows from saying `compile` of a model whose whole forward pass, which is compiled, nobody calls, or
    `cuda_graphs` of one that is compiled anew without."""
    monkeypatch.setattr(sys, "argv", [name, f"--{field.replace('_', '-')}"])
    monkeypatch.setattr(exit_codes, "run_and_exit", lambda main: main())  # which would end this process
    with pytest.raises(UserError, match=f"this strategy cannot honour {field}=True; it takes False"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")


def test_the_first_step_is_the_one_that_compiles():
    """Protects compile_s: the first call's seconds, and no later one's."""
    columns, calls = {}, []
    strategy = SimpleNamespace(step=lambda images, target: calls.append((images, target)), rank=Rank())
    step = time_first_step(strategy, columns)
    step(1, 2)
    first = columns["compile_s"]
    step(3, 4)
    assert columns["compile_s"] == first > 0 and calls == [(1, 2), (3, 4)]


def test_a_column_is_written_where_its_source_says(tmp_path, monkeypatch):
    """Protects pooling: a measured value among the resolved settings would make each run a group of its own."""
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(make_run_folder(tmp_path / "run")))
    record = Record(with_options(), Rank(), 1)
    for measured, resolved in (({}, {"acc1": 2.0}), ({"device_name": "a GPU"}, {})):
        with pytest.raises(ValueError, match="another source for"):
            record.finish(measured, resolved)


def trained(folder, results, args, strategy="ddp", **where):
    args += f" --no-augment --account-steps 2 --checkpoint-dir {folder}"
    row = run_strategy(strategy, results, args, NPROC=2, **where)
    assert row["status"] == "ok", row["reason"]
    return row, torch.load(folder / f"{strategy}-1" / "last.pt", weights_only=True)


@pytest.mark.slow
def test_ddp_trains_the_same_weights_with_its_options(tmp_path, tiny_data, tiny_config):
    """Protects what these options are: the same sums, told to DDP beforehand, or without a copy."""
    where = {"DATA": tiny_data, "CONFIG": tiny_config}
    _, plain = trained(tmp_path / "plain", tmp_path / "set", "", **where)
    reported = ("--static-graph", "--gradient-as-bucket-view", "--static-graph --gradient-as-bucket-view")
    reported += ("--no-broadcast-buffers",)
    for number, options in enumerate(reported):
        row, last = trained(tmp_path / str(number), tmp_path / "set", options, **where)
        assert all(torch.equal(tensor, plain["model"][name]) for name, tensor in last["model"].items()), options
        assert math.isfinite(row["exposed_comm_ms"]) and row["comm_ms"] > 0  # the account knows these buckets
    _, fused = trained(tmp_path / "fused", tmp_path / "set", "--fused", **where)
    ran = [last["optimizer"]["param_groups"][0]["fused"] for last in (plain, fused)]
    assert ran == [None, True]  # of few steps the weights can be equal all the same, to the last bit
    assert all(torch.allclose(tensor, plain["model"][name], atol=1e-4) for name, tensor in fused["model"].items())


@pytest.mark.slow
def test_a_compiled_run_says_how_long_it_compiled(tmp_path, tiny_data, tiny_config):
    """Protects windows from seconds of machine, and evaluation from compiling again."""
    where = {"DATA": tiny_data, "CONFIG": tiny_config}
    row, _ = trained(tmp_path / "single", tmp_path / "set", "--compile", "single", **where)
    assert row["step_ms_p95"] < 1000 * row["compile_s"] / 2


@pytest.mark.parametrize(("chosen", "used"), [(None, "3"), pytest.param("5", "5", marks=pytest.mark.medium)])
def test_a_rank_compiles_on_its_own_cores(tmp_path, chosen, used):
    """Protects the start of a compiled run on 8 ranks: torch would start up to 32 processes for each of them, and 256
    would share the cores. Mutant: the user's number replaced."""
    code = "import torch; torch.set_num_threads(3); from benchmarks.common.machine import prepare_compiler; "
    code += "prepare_compiler(on_gpu=False); print(torch._inductor.config.compile_threads)"
    env = environment(XDG_CACHE_HOME=tmp_path, TORCHINDUCTOR_COMPILE_THREADS=chosen)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == used, done.stderr
