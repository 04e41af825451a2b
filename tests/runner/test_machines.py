"""The suite on machines with 1, 2 and 8 GPUs, and with 8 that this torch cannot use: the plan, what it refuses, the
launchers' words, and each rank's devices. Nothing trains.
"""

import dataclasses
import importlib
import subprocess

import pytest
import torch
from fake_gpus import NOT_USABLE, STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN
from support import ONE_PROCESS, ROOT, STRATEGIES, asked, environment, few_fast

from benchmarks.common import loader as loaders
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from scripts.runner import plan, preflight

SMALL = Config(arch="resnet18", image_size=32, global_batch=16, loader="synthetic", **STEPS)
FAKED = [name for name in STRATEGIES if name not in NO_STAND_IN]
# A rank a GPU, but for these: GPUs of a rank, and the most of 4 that one process drives.
GPUS_OF_A_RANK = {"hybrid_parallel": 2}
DRIVES = {"single": 1, "model_parallel": 2}
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


class NoImages(list):
    classes = ("0", "1")


@pytest.mark.parametrize("name", few_fast(FAKED, {FAKED.index("ddp"), FAKED.index("dataparallel")}))
def test_ranks_divide_the_gpus_and_all_strategies_decode_with_as_many_workers(see, monkeypatch, name):
    """A rank that reads for two GPUs, or one that reads for all, has the workers of as many ranks. The ranks of a
    pipeline validate a part each."""
    see(4)
    monkeypatch.setattr(loaders, "open_datasets", lambda config: (NoImages(range(16)), NoImages(range(16))))
    config = dataclasses.replace(SMALL, loader="folder", decoder="pillow", workers=3)
    ranks, found, devices = num_ranks(name, 4), [], []

    def look(strategy):
        devices.extend(dict.fromkeys(strategy.rank.devices))
        assert (strategy.rank.world_size, strategy.rank.backend) == (ranks, "nccl")

    for rank in range(ranks):
        with pytest.MonkeyPatch.context() as patch:
            made = []
            patch.setattr(loaders, "HostLoader", lambda *args, made=made: made.append(args[0].workers * args[-1]) or [])
            train_on_nothing(patch, name, config, rank, ranks, drive=look)
            *training, validation = made
            found.append((sum(training), validation))
    used = DRIVES.get(name, 4)
    assert devices == [torch.device("cuda", number) for number in range(used)]
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
