"""Options of every strategy: where they arrive, who refuses them, and that a run with them trains the same.

.venv/bin/python -m pytest tests/benchmarks/test_options.py
"""

import dataclasses
import math
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import CPU, ROOT, environment, make_run_folder, run_strategy
from torch._dynamo.utils import counters

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import requested_settings, settings_hash
from benchmarks.common.dist.device_peak import measure_peak
from benchmarks.common.dist.devices import RankContext, ddp_options
from benchmarks.common.dist.layout import Layout, resolve_layout
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.store.run_folder import RUN_DIR_VARIABLE, RunFolder
from benchmarks.common.system import compiling
from benchmarks.common.system.errors import Unavailable, UserError
from benchmarks.common.train import exit_codes
from benchmarks.common.train.clock import time_first_step
from benchmarks.common.train.record import Record

SMALL = Config(arch="resnet18", image_size=32, global_batch=4)
ADDED = ("compile", "cuda_graphs", "fused", "cudnn_benchmark", "cudnn_deterministic", "static_graph")
ADDED += ("gradient_as_bucket_view",)


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
    assert build_model(with_options(compile=True), 4, CPU)._compiled_call_impl is not None
    assert build_model(SMALL, 4, CPU)._compiled_call_impl is None
    model = build_model(SMALL, 4, CPU)
    assert build_optimizer(with_options(fused=True), model).defaults["fused"]
    assert not build_optimizer(SMALL, model).defaults["fused"]
    reported = ddp_options(with_options(static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=3.0))
    assert reported == {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 3.0}
    assert ddp_options(SMALL) == {"static_graph": False, "gradient_as_bucket_view": False, "bucket_cap_mb": None}


@pytest.mark.parametrize("option", ["compile", "fused"])
def test_what_rounds_otherwise_is_not_expected_to_the_last_bit(option):
    """Protects the proof from calling fused kernels wrong, and plain ones right within a tolerance only."""
    assert resolve_layout(SMALL, Layout()).exact and not resolve_layout(with_options(**{option: True}), Layout()).exact


def test_cuda_graphs_are_refused_where_there_are_none():
    for options in ({"cuda_graphs": True}, {"cuda_graphs": True, "compile": True}):
        with pytest.raises(UserError, match="goes with --compile, and not on a CPU"):
            build_model(with_options(**options), 4, CPU)


def test_any_strategy_without_a_compiler_says_so(monkeypatch, tmp_path):
    """Protects machines without g++: a skipped row with the remedy, in place of a library's stack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="needs a C\\+\\+ compiler, and there is none; install g"):
        build_model(with_options(compile=True), 4, CPU)


def test_a_gpu_needs_a_c_compiler_and_triton_too(monkeypatch, tmp_path):
    """Protects GPUs whose image has g++ alone: Triton would end in a stack in the first step."""
    for name in ("g++", "tool"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling, "Path", lambda *parts: SimpleNamespace(exists=lambda: True))  # Python's headers
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    assert not compiling.missing_compiler(on_gpu=False)
    assert "needs a C compiler" in compiling.missing_compiler(on_gpu=True)
    monkeypatch.setenv("CC", "tool")
    assert "pip install triton" in compiling.missing_compiler(on_gpu=True)
    monkeypatch.setattr(compiling, "find_spec", lambda name: name)
    assert not compiling.missing_compiler(on_gpu=True)


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
    step = time_first_step(lambda images, target: calls.append((images, target)), CPU, columns)
    step(1, 2)
    first = columns["compile_s"]
    step(3, 4)
    assert columns["compile_s"] == first > 0 and calls == [(1, 2), (3, 4)]


def test_a_row_counts_graphs_that_were_not_replayed(tmp_path, monkeypatch):
    """Protects the ablation: Inductor only warns, and the row said cuda_graphs all the same."""
    monkeypatch.setitem(counters["inductor"], "cudagraph_skips", 3)
    for number, graphs in enumerate((False, True)):
        folder = RunFolder.create(tmp_path, "single", number)
        monkeypatch.setenv(RUN_DIR_VARIABLE, str(make_run_folder(folder.path)))
        Record(with_options(cuda_graphs=graphs), RankContext(CPU), 1).finish({}, {})
        assert folder.summary()["row"].get("cudagraph_skips") == (3 if graphs else None)


def test_a_column_is_written_where_its_source_says(tmp_path, monkeypatch):
    """Protects pooling: a measured value among the resolved settings would make each run a group of its own."""
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(make_run_folder(tmp_path / "run")))
    record = Record(with_options(), RankContext(CPU), 1)
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
    """Protects windows from seconds of compiling, and evaluation from compiling again."""
    where = {"DATA": tiny_data, "CONFIG": tiny_config}
    row, _ = trained(tmp_path / "single", tmp_path / "set", "--compile", "single", **where)
    assert row["step_ms_p95"] < 1000 * row["compile_s"] / 2


def test_what_is_compiled_lies_where_only_the_user_writes(monkeypatch, tmp_path):
    """Protects from another user of the machine: torch unpickles what lies in /tmp/torchinductor_<user>.

    Mutants: no look at the mode; nor at the folder above; nor at those above that; the variable is not set.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(compiling.TRITON_CACHE, "")  # undone at the end, unlike what the code sets
    monkeypatch.setenv(compiling.CACHE, "")
    compiling.prepare_compiler(on_gpu=False)
    folder = Path(os.environ[compiling.CACHE])
    assert folder.is_relative_to(tmp_path) and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(UserError, match="others can write to"):
        compiling.private_cache()
    folder.chmod(0o700)
    tmp_path.chmod(0o775)  # whoever is of the group could put another folder in its place after the look
    with pytest.raises(UserError, match="others can write to"):
        compiling.private_cache()
    tmp_path.chmod(0o1777)
    assert compiling.private_cache() == folder
    (above := tmp_path / "of somebody").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(above / "cache"))
    above.chmod(0o777)  # above the cache's own parent
    with pytest.raises(UserError, match=rf"^everybody may write to '{above}'; .*{compiling.CACHE}"):
        compiling.private_cache()
    before = os.umask(0o002)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert compiling.private_cache().parent.stat().st_mode & 0o777 == 0o700
    os.umask(before)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nobody/writes/here")
    assert compiling.private_cache().stat().st_mode & 0o777 == 0o700


def test_a_blank_in_a_path_is_said_before_the_compiler_fails(monkeypatch, tmp_path):
    """Protects a checkout or a home such as /home/a user: torch's compiler ended in a stack. GPUs need none.

    Mutant: without the look at Python's packages.
    """
    for variable in (compiling.TRITON_CACHE, compiling.CACHE, compiling.PRECOMPILE_HEADERS):
        monkeypatch.setenv(variable, "")  # undone at the end, unlike what the code sets
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    compiling.prepare_compiler(on_gpu=True)
    with pytest.raises(Unavailable, match=f"no path with a blank, and '.*/a cache/.*; set {compiling.CACHE}"):
        compiling.prepare_compiler(on_gpu=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(compiling.CACHE, "")
    compiling.prepare_compiler(on_gpu=False)
    real_path = compiling.sysconfig.get_path
    moved = {"purelib": "/home/a user/.venv/lib/python3.12/site-packages"}
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: moved.get(name) or real_path(name))
    with pytest.raises(Unavailable, match=r"'/home/a user/.*; install Python and the packages in another folder"):
        compiling.prepare_compiler(on_gpu=False)


CACHES = [compiling.CACHE, compiling.TRITON_CACHE, "CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH"]
CACHES += ["TORCH_EXTENSIONS_DIR"]


def start_compiled() -> None:
    """What a compiled rank does before it takes code from any cache."""
    compiling.refuse_shared_compile_caches()
    compiling.prepare_compiler(on_gpu=False)


@pytest.mark.parametrize("variable", CACHES)
def test_no_compiled_code_is_taken_from_a_chosen_folder_of_others(monkeypatch, tmp_path, variable):
    """Protects who follows the advice to name a cache folder, such as /tmp/inductor-cache: another user can make it
    first, and torch, Triton and CUDA run what lies there. Mutants: a named folder is not looked at; its mode is not;
    the folder above is not; it is not made, so that others can make it after the look."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in CACHES:
        monkeypatch.setenv(name, "")
    own = tmp_path / "own" / "compiled"
    monkeypatch.setenv(variable, str(own))
    start_compiled()
    assert os.environ[variable] == str(own) and own.stat().st_mode & 0o777 == 0o700
    for folder, mode in ((own, 0o770), (own, 0o707), (own.parent, 0o770), (own.parent, 0o777)):
        folder.chmod(mode)
        with pytest.raises(UserError, match=rf"^(others can|everybody may) write to '?{folder}'?[,;] .*{variable}"):
            start_compiled()
        folder.chmod(0o700)
    monkeypatch.setenv(variable, "/proc/nobody/writes/here")
    with pytest.raises(UserError, match=f"cannot be kept in /proc/nobody/writes/here .*; set {variable} to another"):
        start_compiled()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
@pytest.mark.parametrize("variable", CACHES)
def test_a_chosen_cache_that_another_user_made_first_is_refused(monkeypatch, tmp_path, variable):
    """Protects from the owner of the folder, who can write to it whatever its mode is. Mutant: the mode alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in CACHES:
        monkeypatch.setenv(name, "")
    (theirs := tmp_path / "inductor-cache").mkdir(mode=0o755)
    os.chown(theirs, 12345, -1)
    monkeypatch.setenv(variable, str(theirs))
    with pytest.raises(UserError, match=rf"belongs to another user \(12345\); .*set {variable} to another"):
        start_compiled()


@pytest.mark.parametrize("variable", CACHES[2:])
def test_every_rank_refuses_a_cache_of_others(monkeypatch, tmp_path, variable):
    """Protects runs without --compile, which take code from these caches, too: ranks of a strategy, ranks that a study
    starts, and the measured peak. Mutant: the call left out in one of them."""
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv(variable, str(shared))
    monkeypatch.setattr(exit_codes, "exit_at_once", sys.exit)
    monkeypatch.setattr(exit_codes, "guard_output", lambda: None)
    with pytest.raises(SystemExit, match=str(exit_codes.EXIT_USAGE)):
        exit_codes.run_and_exit(lambda: None)
    with pytest.raises(UserError, match=f"may write to {shared}; .*{variable}"):
        measure_peak()


def test_triton_keeps_its_libraries_in_the_checked_cache(monkeypatch, tmp_path):
    """Protects from TRITON_HOME, a folder that others may have made: Triton takes libraries from its .triton/cache.
    Where torch has made the folder inside the cache by a umask of 002, a process that inherits both variables goes on.
    Mutants: the variable left alone; a look at the mode of the folder inside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in (compiling.CACHE, compiling.TRITON_CACHE):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("TRITON_HOME", "/tmp/of-somebody")
    compiling.prepare_compiler(on_gpu=False)
    inside = Path(os.environ[compiling.CACHE], "triton")
    assert os.environ[compiling.TRITON_CACHE] == str(inside)
    inside.mkdir()
    inside.chmod(0o775)
    compiling.prepare_compiler(on_gpu=False)
    assert os.environ[compiling.TRITON_CACHE] == str(inside)


def test_the_cache_of_a_process_with_another_tmpdir_is_not_the_users_choice(monkeypatch, tmp_path):
    """Protects from another user of a cluster's node: the process that submits a job may have torch's default folder in
    the variable, below its own TMPDIR, and the job has another TMPDIR. Mutants: the folder of this TMPDIR alone; a
    folder that is not there taken for the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(compiling.TRITON_CACHE, "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "of the job"))
    for name, mode in (("shared", 0o1777), ("own", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    taken = {}
    for name in ("shared", "gone", "own"):
        monkeypatch.setenv(compiling.CACHE, str(tmp_path / name / "torchinductor_me"))
        compiling.prepare_compiler(on_gpu=False)
        taken[name] = Path(os.environ[compiling.CACHE]).relative_to(tmp_path).parts[0]
    assert taken == {"shared": "cache", "gone": "cache", "own": "own"}


@pytest.mark.parametrize(
    ("threads", "chosen", "used"),
    [("3", None, 3), pytest.param("3", "5", 5, marks=pytest.mark.medium), (None, None, 0)],
)
def test_a_rank_compiles_on_its_own_cores(tmp_path, threads, chosen, used):
    """Protects the start of a compiled run on 8 ranks: torch would start up to 32 processes for each of them, and 256
    would share the cores. Mutants: the variable alone, which torch has read when it was imported; the user's number
    replaced."""
    code = "import os; from benchmarks.common.model import model; from benchmarks.common.system import compiling as c; "
    code += "import torch._inductor.config as config; default = config.compile_threads; "
    code += "c.prepare_compiler(on_gpu=False); print("
    code += "config.compile_threads, os.environ.get(c.COMPILE_THREADS), default)"
    env = environment(XDG_CACHE_HOME=tmp_path, THREADS_PER_RANK=threads, **{compiling.COMPILE_THREADS: chosen})
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    set_to, variable, default = done.stdout.split()
    assert (set_to, variable) == ((str(used), str(used)) if used else (default, "None")), done.stderr


@pytest.mark.slow
def test_no_header_of_another_user_is_compiled_in(tmp_path):
    """Protects from code of another user, who can make /tmp/torchinductor_<user>: torch takes precompiled headers from
    there, whatever its cache is. Mutant: the headers stay on."""
    code = "import torch; from benchmarks.common.system import compiling as c; c.prepare_compiler(on_gpu=False); "
    code += "print(torch.compile(lambda x: x.sin() + 1)(torch.zeros(9)).sum().item())"
    env = environment(XDG_CACHE_HOME=tmp_path / "cache", TMPDIR=tmp_path)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "9.0", done.stderr
    assert not [*tmp_path.glob("torchinductor_*/*")], "torch kept what it compiles in the folder that anybody may make"


@pytest.mark.medium
def test_the_cache_that_torch_chose_when_it_was_imported_is_not_the_users_choice(tmp_path):
    """Protects from another user of the machine: torchvision's import sets the variable to /tmp/torchinductor_<user>.

    Mutants: what is set stays; a name of another torch, which this subprocess would find.
    """
    code = "import os; from benchmarks.common.model import model; from benchmarks.common.system import compiling as c; "
    code += "c.prepare_compiler(on_gpu=False); "
    command = [sys.executable, "-c", code + "print(os.environ[c.CACHE])"]
    for given in (None, tmp_path / "torchinductor_x"):  # by the import in this process, and in the one before it
        env = environment(XDG_CACHE_HOME=tmp_path / "cache", TMPDIR=tmp_path, **{compiling.CACHE: given})
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert Path(done.stdout.strip()).is_relative_to(tmp_path / "cache"), done.stderr
