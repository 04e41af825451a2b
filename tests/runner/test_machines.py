"""The suite on machines with 1, 2 and 8 GPUs, and with 8 that this torch cannot use: the plan, what it refuses, the
launchers' words, and each rank's devices. Nothing trains.
"""

import dataclasses
import importlib
import os
import subprocess

import pytest
import torch
from fake_gpus import NOT_USABLE, STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN
from support import ONE_PROCESS, OURS, ROOT, STRATEGIES, asked, environment, few_fast

from benchmarks.common import loader as loaders
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from scripts.runner import plan, preflight

SMALL = Config(arch="resnet18", image_size=32, global_batch=16, loader="synthetic", **STEPS)
FAKED = [name for name in STRATEGIES if name not in NO_STAND_IN]
OTHERS = [name for name in FAKED if name != "single"]
# A rank a GPU, but for these: GPUs of a rank, and the most that one drives.
GPUS_OF_A_RANK = {"hybrid_parallel": 2}
DRIVES = {"single": 1, "model_parallel": 2, "dataparallel": 8}
ONE_IS_TOO_FEW = {"hybrid_parallel"}


@pytest.fixture
def see(monkeypatch, tmp_path):
    """see(num_gpus, usable): a machine."""
    for name in ("ARGS", "DATA", "RESULTS", "RETRY", "STRATEGIES", "REPEATS", "HOSTS", "NNODES", "THREADS_PER_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plan, "_fingerprint", lambda *_: "")
    return lambda num_gpus, usable=True: see_gpus(monkeypatch, num_gpus, usable)


def num_ranks(name: str, num_gpus: int) -> int:
    return 1 if name in ONE_PROCESS else num_gpus // GPUS_OF_A_RANK.get(name, 1)


def launched(recorder, run: plan.Run, results) -> dict:
    """What its launcher hands to the record: words and env."""
    folder, launcher_variables = plan.create_run_folder(run, results)
    nothing = {"CUDA_VISIBLE_DEVICES": None, "NUM_GPUS": None, "THREADS_PER_RANK": None}
    job = {"SLURM_JOB_ID": 7, "SLURM_JOB_CPUS_PER_NODE": 8}
    env = environment(**nothing | launcher_variables | recorder.variables | job)
    words = [ROOT / "launchers" / f"{run.strategy}.sh", "--run", folder.plan]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return recorder.calls()[-1]


def after(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


@pytest.mark.parametrize("num_gpus", [1, 8])
def test_a_launcher_starts_a_rank_a_gpu(see, recorder, monkeypatch, tmp_path, num_gpus):
    """With no variable set: ranks, GPUs, and the configuration for GPUs."""
    see(num_gpus)
    monkeypatch.setenv("STRATEGIES", "all")
    variables = asked()
    assert variables.flags[:2] == ["--config", "configs/imagenet-bench.yaml"] and variables.ranks_here == num_gpus
    runs = plan.round_of(plan.name_runs(plan.plan_strategies(variables)), 1)
    assert {run.strategy for run in runs} == set(STRATEGIES)
    for run in runs:
        call = launched(recorder, run, tmp_path / "a set")
        words, env, ranks = call["words"], call["env"], num_ranks(run.strategy, num_gpus)
        if num_gpus == 1 and run.strategy in ONE_IS_TOO_FEW:
            assert "needs two GPUs" in after(words, "--skip")
            continue
        assert words[-3:] == [f"benchmarks.{run.strategy}", "--config", after(words, "--run")], words
        assert (env["NPROC"], env["NUM_GPUS"]) == (str(ranks), str(num_gpus)), run.strategy
        output = [after(words, flag) for flag in ("--nproc-per-node", "-np", "--ntasks-per-node")]
        assert set(output) <= {None, str(ranks)}, run.strategy
        if run.strategy in ONE_PROCESS:
            assert output == [None] * 3
        if run.strategy in ("dataparallel", "model_parallel"):
            assert env["CUDA_VISIBLE_DEVICES"] == ",".join(map(str, range(num_gpus)))
        else:
            assert "CUDA_VISIBLE_DEVICES" not in env


@pytest.mark.parametrize("name", sorted(ONE_PROCESS - {"single"}))
def test_nproc_is_the_gpus_of_one_process(see, recorder, monkeypatch, tmp_path, name):
    """The forecast is of so many, and the run takes no more."""
    see(2)
    monkeypatch.setenv("NPROC", "1")
    run = plan.make_run(asked(), name, SMALL).in_round(1)
    assert launched(recorder, run, tmp_path / "a set")["env"]["CUDA_VISIBLE_DEVICES"] == "0"
    recorder.variables["CUDA_VISIBLE_DEVICES"] = "1,0"
    assert launched(recorder, run, tmp_path / "a set")["env"]["CUDA_VISIBLE_DEVICES"] == "1"
    assert importlib.import_module(f"benchmarks.{name}").layout(SMALL, 1).num_devices == 1


@pytest.mark.parametrize("name", FAKED)
@pytest.mark.launches
def test_the_ranks_divide_the_gpus(see, name):
    num_gpus = 8
    see(num_gpus)
    ranks, seen = num_ranks(name, num_gpus), []

    def look(strategy):
        seen.append((strategy.rank, list(strategy.rank.devices), strategy.columns))

    for rank in sorted({0, ranks - 1}):
        with pytest.MonkeyPatch.context() as patch:
            train_on_nothing(patch, name, SMALL, rank, ranks, drive=look)
    (worker, first, columns), (_, last, _) = seen[0], seen[-1]
    each = DRIVES.get(name, GPUS_OF_A_RANK.get(name, 1))
    expected = [torch.device("cuda", index) for index in range(num_gpus)]
    assert list(dict.fromkeys(first)) == expected[:each] and worker.world_size == ranks
    if ranks > 1:
        assert last == expected[-each:]
    assert worker.backend == "nccl"
    assert (len({*first, *last}) > 1) == (num_gpus > 1 and name != "single")
    assert ("parallel" in columns) == (name == "single")


class NoImages(list):
    classes = ("0", "1")


@pytest.mark.parametrize("name", few_fast(OTHERS, {OTHERS.index("ddp"), OTHERS.index("dataparallel")}))
def test_every_strategy_decodes_with_as_many_workers(see, monkeypatch, name):
    """A rank that reads for two GPUs, or one that reads for all, has the workers of as many ranks. The ranks of a
    pipeline validate a part each."""
    see(4)
    monkeypatch.setattr(loaders, "open_datasets", lambda config: (NoImages(range(16)), NoImages(range(16))))
    config = dataclasses.replace(SMALL, loader="folder", decoder="pillow", workers=3)
    ranks = num_ranks(name, 4)
    found = []
    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            made = []
            patch.setattr(loaders, "HostLoader", lambda *args, made=made: made.append(args[0].workers * args[-1]) or [])
            train_on_nothing(patch, name, config, rank, ranks, drive=lambda strategy: None)
            *training, validation = made
            found.append((sum(training), validation))
    used = min(4, DRIVES.get(name, 4))
    assert [sum(numbers) for numbers in zip(*found, strict=True)] == [3 * used, 3 * used]


def test_what_is_refused_before_a_run(see):
    see(8)
    preflight.check_ranks([SMALL], [8])
    with pytest.raises(UserError, match="asks for 9 ranks, but only 8 GPUs can be seen"):
        preflight.check_ranks([dataclasses.replace(SMALL, global_batch=9)], [9])
    with pytest.raises(UserError, match="is not a multiple of 8 ranks; try --global-batch 8"):
        preflight.check_ranks([dataclasses.replace(SMALL, global_batch=9)], [8])


# --- GPUs that cannot be used -------------------------------------------------------------------------------------


def test_nothing_is_planned_on_gpus_that_cannot_be_used(see, monkeypatch):
    """What the user says of the machine counts, though."""
    see(8, usable=False)
    with pytest.raises(UserError, match=NOT_USABLE):
        asked()
    monkeypatch.setenv("NUM_GPUS", "0")
    assert (asked().ranks_here, asked().flags[1]) == (2, "configs/smoke.yaml")


@pytest.mark.launches
def test_bench_ends_with_the_reason(recorder, tmp_path):
    """On a machine with an old driver: one sentence, exit code 2, and nothing was run."""
    (tmp_path / "sitecustomize.py").write_text(
        "from benchmarks.common import errors, machine\n"
        f"def usable_gpus(): raise errors.UserError({NOT_USABLE!r})\n"
        "machine.usable_gpus = usable_gpus\n"
    )
    own = {"PASSED_ON": OURS, "NUM_GPUS": None, "SETUP": "no", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    env = environment(**recorder.variables | own | {"CUDA_VISIBLE_DEVICES": None})
    words = [ROOT / "bench", "run", "--results", tmp_path / "a set"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (2, f"error: {NOT_USABLE}")
    assert recorder.calls() == [] and not (tmp_path / "a set").exists()
