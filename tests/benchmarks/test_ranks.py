"""Who a process is among the others, whoever started it, and what it says where it cannot know.

.venv/bin/python -m pytest tests/benchmarks/test_ranks.py
"""

import threading

import pytest
import torch

from benchmarks.common import rank as devices
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.rank import RankInfo, all_reduce_sum, find_rank_info, rank_zero_first, set_up_rank

TORCHRUN = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
HOROVODRUN = {"HOROVOD_RANK": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_SIZE": "3", "HOROVOD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3"}
ALLOCATION = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}  # a batch script


@pytest.mark.parametrize(
    "env, place",
    [
        (TORCHRUN, RankInfo(3, 1, 4, 2, "torchrun")),
        (HOROVODRUN, RankInfo(1, 0, 3, 2, "horovodrun")),  # 3 ranks, at most 2 on a node: 2 nodes
        (SRUN, RankInfo(2, 0, 6, 3, "srun")),
        ({}, RankInfo(0, 0, 1, 1, "none")),
    ],
)
def test_the_place_and_who_set_it(env, place):
    """Protects rank, local_rank, world_size and nodes under every launcher, and under none."""
    assert find_rank_info(env=env) == place
    if env:
        assert find_rank_info(place.launcher, env) == place


def test_the_innermost_launcher_wins():
    """Protects torchrun and horovodrun inside a Slurm job: srun's numbers are about srun's tasks, not about them."""
    assert find_rank_info(env=SRUN | TORCHRUN).launcher == "torchrun"
    assert find_rank_info(env=SRUN | HOROVODRUN).launcher == "horovodrun"
    assert find_rank_info("srun", SRUN | TORCHRUN) == RankInfo(2, 0, 6, 3, "srun")  # unless the script is srun's own
    assert find_rank_info("horovodrun", TORCHRUN | HOROVODRUN).launcher == "horovodrun"


def test_tasks_of_srun_meet_in_no_file_of_a_run_around_them():
    """Protects `srun python -m benchmarks.slurm`: its ranks have a store of their own, and two were a TypeError."""
    assert find_rank_info("srun", SRUN | {"RENDEZVOUS_FILE": "/tmp/ranks"}).rendezvous_file == ""
    assert find_rank_info("torchrun", TORCHRUN | {"RENDEZVOUS_FILE": "/tmp/ranks"}).rendezvous_file == "/tmp/ranks"


def test_slurm_variables_of_an_allocation_are_not_a_task():
    """Protects `python` typed in a Slurm shell, which has SLURM_PROCID too: it is one process, not rank 0 of 4."""
    assert find_rank_info(env=ALLOCATION) == RankInfo()
    with pytest.raises(UserError, match=r"srun did not start this process \(SLURM_STEP_NUM_TASKS not set\)"):
        find_rank_info("srun", ALLOCATION)


@pytest.mark.parametrize("launcher, env", [("torchrun", TORCHRUN), ("horovodrun", HOROVODRUN), ("srun", SRUN)])
def test_missing_and_wrong_variables_are_named_with_the_command_to_use(launcher, env):
    """Protects the reader of the message: which variable, and how to start the script instead."""
    with pytest.raises(UserError, match=f"{launcher} did not start this process .* not set.*start it with: "):
        find_rank_info(launcher, {})
    names = list(env)[:3]
    for name in names[:2]:
        for wrong in ("", "x", "-1", "1.5"):
            with pytest.raises(UserError, match=rf"{name} is '.*', but {launcher} sets a number; start it with: "):
                find_rank_info(env=env | {name: wrong})
        with pytest.raises(UserError, match=name):
            find_rank_info(env={key: value for key, value in env.items() if key != name})
    for name in names[:2]:
        with pytest.raises(UserError, match="unset stale variables"):
            find_rank_info(env=env | {name: env[names[2]]})


@pytest.mark.parametrize("fails", [False, True])
def test_rank_0_goes_first_and_does_not_keep_the_others_waiting(fails):
    """Protects data that rank 0 prepares for all, and against a hang where rank 0 fails in the block."""
    num_ranks, order, errors = 3, [], []
    barrier = threading.Barrier(num_ranks, timeout=20)

    def work(rank):
        try:
            with rank_zero_first(rank, barrier.wait):
                order.append(rank)
                if fails and rank == 0:
                    raise ValueError("planted")
        except ValueError as error:
            errors.append(error)

    ranks = [threading.Thread(target=work, args=[rank]) for rank in range(num_ranks)]
    for rank in reversed(ranks):  # rank 0 comes last, and is still first
        rank.start()
    for rank in ranks:
        rank.join()
    assert order[0] == 0 and sorted(order) == [0, 1, 2]
    assert len(errors) == fails


def test_a_collective_before_initialisation_is_a_users_error():
    """Protects against torch's page of traceback for a group that was never started."""
    with pytest.raises(UserError, match=r"a collective was called before dist\.init_process_group; start the group"):
        all_reduce_sum(torch.ones(1))


@pytest.mark.parametrize("threads", ["abc", "0", "-1"])
def test_a_number_of_threads_that_is_none_is_named(monkeypatch, threads):
    """Protects a script that is started by hand from a traceback; an empty variable is none."""
    monkeypatch.setenv("THREADS_PER_RANK", threads)
    with pytest.raises(UserError, match="THREADS_PER_RANK is"):
        set_up_rank(Config(), RankInfo())
    monkeypatch.setenv("THREADS_PER_RANK", "")
    set_up_rank(Config(), RankInfo())


@pytest.mark.parametrize(
    ("launcher", "num_gpus", "words"),
    [("srun", 1, "srun --gpu-bind=none"), ("srun", 2, "lower NPROC"), ("torchrun", 1, "lower NPROC")],
)
def test_a_task_that_sees_one_gpu_is_told_of_slurms_binding(monkeypatch, launcher, num_gpus, words):
    """Protects sites that bind one GPU to each task: to lower the number of tasks does not help there. Mutants: the
    same words for each launcher; for any number of GPUs."""
    monkeypatch.setattr(devices, "usable_gpus", lambda: num_gpus)
    info = RankInfo(rank=2, local_rank=2, world_size=4, launcher=launcher)
    with pytest.raises(UserError, match=f"rank 2 wants GPU 2, but {num_gpus} can be seen; .*{words}"):
        set_up_rank(Config(), info)
