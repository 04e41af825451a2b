"""Who a process is among the others, whoever started it."""

import dataclasses
from importlib.metadata import EntryPoint

import pytest
import torch

from benchmarks.common import rank as ranks
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.rank import CPU, NotStarted, Rank

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3"}
SRUN |= {"MASTER_ADDR": "node1"}


@pytest.mark.parametrize(
    "launcher, env, rank, num_nodes",
    [
        ("torchrun", TORCHRUN, Rank(3, 1, 4, 2), 2),
        ("horovodrun", HOROVODRUN, Rank(1, 0, 3, 2), 2),  # 3 ranks, at most 2 on a node
        ("srun", SRUN, Rank(2, 0, 6, 2), 3),
    ],
)
def test_the_rank_is_what_its_launcher_says(launcher, env, rank, num_nodes):
    """Also inside another launcher's job."""
    for others in ({}, TORCHRUN | HOROVODRUN | SRUN):
        found = Rank.from_env(launcher, env=others | env)
        assert dataclasses.replace(found, init_method=rank.init_method) == rank and found.num_nodes == num_nodes


def test_ranks_meet_in_the_file_of_their_launcher(tmp_path):
    env = {"RENDEZVOUS_FILE": str(tmp_path / "ranks")}
    assert Rank.from_env("torchrun", env=TORCHRUN | env).init_method == f"file://{tmp_path}/ranks?rank=3&world_size=4"
    assert Rank.from_env("torchrun", env=TORCHRUN).init_method == "env://?rank=3&world_size=4"
    assert Rank.from_env("srun", env=SRUN).init_method == "env://?rank=2&world_size=6"
    with pytest.raises(UserError, match="export the name of the job's first node"):
        Rank.from_env("srun", env={name: text for name, text in SRUN.items() if name != "MASTER_ADDR"})


def test_a_process_that_nobody_started_as_a_rank_says_so():
    """`python` typed in a Slurm shell, which has SLURM_PROCID too, is one process, not rank 0 of 4."""
    with pytest.raises(NotStarted, match="SLURM_STEP_NUM_TASKS"):
        Rank.from_env("srun", env={"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"})


def test_by_hand_a_rank_has_its_share_of_the_cores(monkeypatch):
    for name in ("THREADS_PER_RANK", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ranks, "num_cores", lambda: 9)
    set_to = []
    monkeypatch.setattr(torch, "set_num_threads", set_to.append)
    ranks.prepare(Config(), Rank(1, 1, 4, 2))
    assert set_to == [4]


@pytest.mark.parametrize(("num_gpus", "remedy"), [(1, "--gpu-bind=none"), (2, "start 2")])
def test_a_rank_without_its_gpu_is_told_what_to_do(monkeypatch, num_gpus, remedy):
    """Slurm may bind one GPU to each task."""
    monkeypatch.setattr(ranks, "usable_gpus", lambda: num_gpus)
    monkeypatch.setenv("SLURM_PROCID", "2")
    with pytest.raises(UserError, match=f"GPU 2, but {num_gpus}.*{remedy}"):
        ranks.rank_devices(2)


def test_a_rank_whose_launcher_counted_gpus_does_not_train_on_the_cpu(monkeypatch):
    monkeypatch.setattr(ranks, "usable_gpus", lambda: 0)
    monkeypatch.setenv("NUM_GPUS", "0")
    assert ranks.rank_devices(0) == (CPU,)
    monkeypatch.setenv("NUM_GPUS", "4")
    with pytest.raises(UserError, match="4 GPUs"):
        Rank.from_env("torchrun", env=TORCHRUN)


def test_ddp_takes_the_nccl_whose_buckets_overlap(monkeypatch):
    """From torch 2.15 on `nccl` waits in getFuture()."""
    legacy = EntryPoint("nccl-legacy", "torch", "torch.distributed.backends")
    on_gpu = Rank(devices=(torch.device("cuda:1"),))
    for known, backend in (([legacy], "nccl-legacy"), ([], "nccl")):
        monkeypatch.setattr(ranks, "entry_points", lambda group, known=known: known)
        assert (on_gpu.ddp_backend, on_gpu.backend, Rank().ddp_backend) == (backend, "nccl", "gloo")
