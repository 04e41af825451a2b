"""What the strategies that came after the first eleven refuse, and that checkpoints go from one to another.

.venv/bin/python -m pytest tests/benchmarks/test_newer_strategies.py
"""

import shutil
import subprocess
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from support import NUM_VAL, ROOT, environment, make_run_folder, run_strategy
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks import ddp_compressed, fsdp, local_sgd
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.exchange import ddp_exchange
from benchmarks.common.run_folder import RunFolder
from scripts.studies.allreduce.launch_ranks import torchrun_command

SMALL = {"arch": "resnet18", "image_size": 32, "global_batch": 8, "loader": "synthetic"}


@pytest.fixture
def second_of_two(monkeypatch):
    """This process as torchrun's rank 1 of 2, which nothing here gets far enough to need."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


@pytest.mark.parametrize(
    ("build", "options", "sentence"),
    [
        (ddp_compressed.build, {"comm_hook": "powersgd"}, "PowerSGD runs over NCCL, and on gloo it aborts; use --comm"),
        (fsdp.build, {"shard_ranks": 3}, "shard_ranks 3 does not divide 2 ranks; change one of them"),
        (local_sgd.build, {"local_group": 3}, "local_group 3 does not divide 2 ranks; change one"),
        (fsdp.build, {"precision": "fp16"}, "precision fp16 needs a gradient scaler"),
        (local_sgd.build, {"precision": "tf32"}, "precision tf32 needs a GPU"),
    ],
)
def test_what_cannot_be_is_refused_before_the_ranks_meet(second_of_two, build, options, sentence):
    """Protects users of new options: a sentence with the remedy, and no abort of a library, or silence."""
    with pytest.raises(UserError, match=sentence):
        build(Config(**SMALL | options))


KEPT_GROUPS = []
"""PowerSGD's callbacks run in threads of gloo and hold the group. A thread that gives up the last reference to it joins
itself, and the process aborts (torch 2.15)."""


def test_the_step_breakdown_of_powersgd_leaves_no_nan(tmp_path):
    """Protects the steps of a breakdown: PowerSGD divides by norms, and keeps what it rounded off. Communication alone
    sent zeros, and all weights were NaN afterwards. Mutant: zeros as gradients."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    KEPT_GROUPS.append(dist.group.WORLD)
    try:
        module = torch.nn.Linear(16, 16)
        model = DistributedDataParallel(module)
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(2):  # uncompressed
            model(torch.ones(4, 16)).sum().backward()
        communicate = ddp_exchange(model).communicate
        for _ in range(3):
            communicate()
        assert not any(error.isnan().any() for error in state.error_dict.values())
        model(torch.ones(4, 16)).sum().backward()
        assert state.error_dict and not module.weight.grad.isnan().any()
    finally:
        dist.destroy_process_group()


def test_the_groups_of_local_sgd_wait_no_longer_than_the_others(monkeypatch, tmp_path):
    """Protects timeout_s: a rank that hangs inside a group of local_sgd was waited for by the library's own half an
    hour. Mutant: new_subgroups without a timeout."""
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in (variables | {"RENDEZVOUS_FILE": tmp_path / "rendezvous"}).items():
        monkeypatch.setenv(name, str(value))
    local_sgd.build(Config(**SMALL, timeout_s=77, steps=1))
    try:
        groups = list(dist.distributed_c10d._world.pg_map)
        limits = [group._get_backend(torch.device("cpu")).options._timeout for group in groups]
        assert limits == [timedelta(seconds=77)] * 2  # all ranks', and this rank's own
    finally:
        dist.destroy_process_group()


def weights(folder, name="last"):
    return torch.load(folder / f"{name}.pt", weights_only=True)


@pytest.mark.medium
def test_a_traced_model_trains_as_ddp_does(tmp_path, tiny_data, tiny_config):
    """Protects ddp_compile where nobody waits for its compiler: two real ranks, whose model was traced and split at
    DDP's buckets, and whose operations then run one by one, so that its weights are ddp's to the last bit. A run with
    the compiler is in test_strategies.py. Mutant: module.forward in place of model in the step, which exchanges
    nothing.
    """
    found = []
    for name, program in (("traced", [ROOT / "tests" / "traced_only.py"]), ("ddp", ["-m", "benchmarks.ddp"])):
        folder = make_run_folder(tmp_path / "a set" / "logs" / name)
        start, variables = torchrun_command(2, folder)
        flags = ["--config", tiny_config, "--data", tiny_data, "--epochs", "1", "--checkpoint-dir", folder]
        env = environment(**variables, RUN_DIR=folder, OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo", PYTHONPATH=ROOT)
        done = subprocess.run([*start, *program, *flags], cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append((weights(folder)["model"], RunFolder(folder).summary()))
    (traced, reported), (plain, _) = found
    assert all(torch.equal(traced[name], value) for name, value in plain.items())
    assert reported["met"]["exact"] is False and reported["row"]["val_samples"] == NUM_VAL
    assert reported["met"]["optimize_ddp"] == "True" and reported["met"]["compile_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zero1", "fsdp", "local_sgd"])
def test_a_checkpoint_goes_to_ddp_and_back(tmp_path, tiny_data, tiny_config, name):
    """Protects long trainings: weights and momentum are written whole, whoever kept which part of them."""
    folder, own = tmp_path / "checkpoints", {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2}
    for epochs, strategy in enumerate((name, "ddp", name), 1):
        args = f"--no-augment --epochs {epochs} --resume --checkpoint-dir {folder}"
        row = run_strategy(strategy, tmp_path / "set", args, **own)
        assert row["status"] == "ok", row["reason"]
        kept = folder / f"{strategy}-1"
        assert weights(kept)["epoch"] == epochs
        assert len(weights(kept)["optimizer"]["state"]) == 62
        (kept / "last.pt").rename(folder / "last.pt")  # where the next one, whose own folder is empty, finds it
        shutil.rmtree(kept)


@pytest.mark.slow
def test_ranks_differ_between_two_averages_and_agree_after_one(tmp_path, tiny_data, tiny_config):
    """Protects local SGD from being plain DDP: what ranks hold inside a period is their own."""
    found = {}
    for period in (3, 5):  # of 2 epochs x 5 steps: the 10th step is inside a period of 3, and ends one of 5
        args = f"--no-augment --local-period {period} --checkpoint-dir {tmp_path / str(period)}"
        row = run_strategy("local_sgd", tmp_path / "set", args, DATA=tiny_data, CONFIG=tiny_config, NPROC=2)
        assert row["status"] == "ok", row["reason"]
        num_weights = 11_178_564  # of ResNet-18 with 4 classes; buffers and momentum come after them
        kept = weights(tmp_path / str(period) / "local_sgd-1")
        one, other = (rank[:num_weights] for rank in kept["ranks"])
        found[period] = torch.equal(one, other)
    assert found == {3: False, 5: True}
