"""Who a process is among the others, whoever started it, and what it says where it cannot know.

.venv/bin/python -m pytest tests/benchmarks/test_ranks.py
"""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch
from support import ROOT, environment

from benchmarks.common import rank as ranks
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.rank import CPU, NotStarted, Rank, prepare

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3"}
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}  # a batch script


@pytest.mark.parametrize(
    "launcher, env, rank, num_nodes",
    [
        ("torchrun", TORCHRUN, Rank(3, 1, 4, 2), 2),
        ("horovodrun", HOROVODRUN, Rank(1, 0, 3, 2), 2),  # 3 ranks, at most 2 on a node
        ("srun", SRUN, Rank(2, 0, 6, 2), 3),
    ],
)
def test_the_rank_is_what_its_launcher_says(launcher, env, rank, num_nodes):
    """Protects rank, local_rank, world_size and nodes under every launcher, also inside another one's job."""
    for others in ({}, TORCHRUN | HOROVODRUN | SRUN):
        found = Rank.from_env(launcher, env=others | env)
        assert found == rank and found.num_nodes == num_nodes


def test_ranks_meet_in_the_file_of_their_launcher(tmp_path):
    """Protects runs on one machine from a port on all interfaces. Tasks of srun have a file of their own."""
    env = {"RENDEZVOUS_FILE": str(tmp_path / "ranks")}
    assert Rank.from_env("torchrun", env=TORCHRUN | env).init_method == f"file://{tmp_path}/ranks?rank=3&world_size=4"
    assert Rank.from_env("torchrun", env=TORCHRUN).init_method == "env://"
    assert Rank.from_env("srun", env=SRUN | env).init_method == "env://"


def test_a_process_that_nobody_started_as_a_rank_says_so():
    """Protects `python` typed in a Slurm shell, which has SLURM_PROCID too: it is one process, not rank 0 of 4."""
    with pytest.raises(NotStarted, match="srun did not start this process: SLURM_STEP_NUM_TASKS not set"):
        Rank.from_env("srun", env=ALLOCATION)
    with pytest.raises(UserError, match="LOCAL_RANK is 'x', but torchrun sets a number"):
        Rank.from_env("torchrun", env=TORCHRUN | {"LOCAL_RANK": "x"})


@pytest.mark.parametrize("threads", ["abc", "0", "-1"])
def test_a_number_of_threads_that_is_none_is_named(monkeypatch, threads):
    """Protects a script that is started by hand from a traceback; an empty variable is none."""
    monkeypatch.setenv("THREADS_PER_RANK", threads)
    with pytest.raises(UserError, match="THREADS_PER_RANK is"):
        prepare(Config(), Rank())
    monkeypatch.setenv("THREADS_PER_RANK", "")
    prepare(Config(), Rank())


def test_by_hand_a_rank_has_its_share_of_the_cores():
    """Protects `torchrun -m benchmarks.ddp` beside `python -m benchmarks.single`: torchrun sets OMP_NUM_THREADS=1."""
    code = "import torch; from benchmarks.common import rank; rank.num_cores = lambda: 9; "
    code += "from benchmarks.common.config import Config; rank.prepare(Config(), rank.Rank(1, 1, 4, 2)); "
    code += "print(torch.get_num_threads())"
    env = environment(OMP_NUM_THREADS=1, THREADS_PER_RANK=None, SLURM_STEP_NUM_TASKS=None)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "4\n"


@pytest.mark.parametrize(
    ("in_slurm", "num_gpus", "words"),
    [(True, 1, "srun --gpu-bind=none"), (True, 2, "start 2 ranks"), (False, 1, "start 1 ranks")],
)
def test_a_task_that_sees_one_gpu_is_told_of_slurms_binding(monkeypatch, in_slurm, num_gpus, words):
    """Protects sites that bind one GPU to each task: to lower the number of tasks does not help there."""
    monkeypatch.setattr(ranks, "usable_gpus", lambda: num_gpus)
    monkeypatch.setenv("SLURM_PROCID", "2")
    if not in_slurm:
        monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(UserError, match=f"local rank 2 wants GPU 2, but {num_gpus} can be seen; .*{words}"):
        ranks.rank_devices(2)


def test_a_rank_whose_launcher_counted_gpus_does_not_train_on_the_cpu(monkeypatch):
    """Protects the row of a GPU that was lost after the plan: it was `ok`, with the CPU's speed."""
    monkeypatch.setattr(ranks, "usable_gpus", lambda: 0)
    monkeypatch.setenv("NUM_GPUS", "0")
    assert ranks.rank_devices(0) == (CPU,)
    monkeypatch.setenv("NUM_GPUS", "4")
    with pytest.raises(UserError, match="the launcher counted 4 GPUs, and this rank finds none"):
        Rank.from_env("torchrun", env=TORCHRUN)


@pytest.mark.parametrize("device, found", [("cuda:1", "nccl-legacy"), ("cpu", "gloo")])
def test_ddp_takes_the_nccl_whose_buckets_overlap(monkeypatch, device, found):
    """Protects DDP on torch 2.15 and newer, whose `nccl` waits in getFuture()."""
    rank = Rank(devices=(torch.device(device),))
    legacy = EntryPoint("nccl-legacy", "torch", "torch.distributed.backends")
    monkeypatch.setattr(ranks, "entry_points", lambda group: [legacy])
    assert rank.ddp_backend == found and rank.backend == ("nccl" if "cuda" in device else "gloo")
    monkeypatch.setattr(ranks, "entry_points", lambda group: [])
    assert rank.ddp_backend == rank.backend
