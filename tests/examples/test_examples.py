"""The examples train what the suite times, bit for bit on a CPU, and they learn, resume and evaluate."""

import functools
import os
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fixed_batches import NUM_CLASSES, FixedLoader
from support import NUM_VAL, ROOT, environment, put
from torch.distributed.checkpoint.state_dict import get_state_dict
from torchvision.models import resnet18
from train_as_suite import EPOCHS, GLOBAL_BATCH

from benchmarks.common.config import Config
from benchmarks.common.model import learning_rate
from scripts.studies.allreduce.launch_ranks import horovodrun_command, torchrun_command

HERE, EXAMPLES = Path(__file__).parent, ROOT / "examples"
STRATEGY_OF = {  # whose update an example repeats; apex_ddp needs an NVIDIA GPU
    "ddp": "ddp",
    "pipeline": "pipeline_parallel",
    "fsdp": "fsdp",
    "single": "single",
    "dataparallel": "dataparallel",
    "model_parallel": "model_parallel",
    "ddp_spawn": "ddp_spawn",
    "horovod_ddp": "horovod_ddp",
}
ONE_BATCH = ("single", "dataparallel", "model_parallel", "pipeline")  # which all ranks, if there are any, train on


def start_ranks(name: str, folder: Path, script: Path, *words: object, paths: tuple[Path, ...] = ()) -> str:
    """What a script prints, as the strategy or example of this name, on two ranks where it has any."""
    command, variables = [sys.executable], {}
    if name == "horovod_ddp":
        pytest.importorskip("horovod")
        command = [*horovodrun_command(2), sys.executable]
    elif name in ("ddp", "fsdp", "pipeline", "pipeline_parallel") or (name == "ddp_spawn" and script.parent == HERE):
        command, variables = torchrun_command(2, folder)
    env = environment(**variables, OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo", NPROC=2)
    env |= {"PYTHONPATH": os.pathsep.join(map(str, paths))} if paths else {}
    command = [*command, script, *words]
    done = subprocess.run([*map(str, command)], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return re.sub(r"(?m)^.*\]<stdout>: ?", "", done.stdout)  # as horovodrun marks lines


@functools.cache
def checkpoint(folder: Path, is_named: bool) -> Path:
    """A training after its first epoch."""
    torch.manual_seed(7)
    model = resnet18(num_classes=NUM_CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    model(torch.randn(8, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    if is_named:  # as FSDP's is
        state["optimizer"] = get_state_dict(model, optimizer)[1]
    path = folder / f"{'named' if is_named else 'numbered'}.pt"
    torch.save(state | {"epoch": 1}, path)
    return path


@pytest.fixture(scope="module")
def by_suite(tmp_path_factory, tiny_data):
    """by_suite(strategy): the state in which it ends."""

    @functools.cache
    def train(strategy: str) -> dict:
        folder = tmp_path_factory.mktemp(strategy)
        words = [strategy, tiny_data, checkpoint(folder, False), folder / "result.pt"]
        start_ranks(strategy, folder, HERE / "train_as_suite.py", *words, paths=(ROOT, HERE))
        return torch.load(folder / "result.pt", weights_only=True)

    return train


def train_example(name: str, folder: Path, data: Path) -> tuple[dict, str]:
    """(checkpoint, what was printed), on the fixed batches."""
    batch_size = GLOBAL_BATCH if name in ONE_BATCH else GLOBAL_BATCH // 2
    words = f"--arch resnet18 --image-size 32 --workers 0 --epochs {EPOCHS} --batch-size {batch_size}".split()
    words += ["--resume", checkpoint(folder, name == "fsdp")]
    printed = start_ranks(name, folder, EXAMPLES / f"{name}.py", data, *words, paths=(HERE / "patched", HERE))
    return torch.load(folder / "checkpoint.pt", weights_only=True), printed


def momenta(state: dict) -> list[torch.Tensor]:
    (group,) = state["optimizer"]["param_groups"]
    return [state["optimizer"]["state"][name]["momentum_buffer"] for name in group["params"]]


def are_equal(state: dict, other: dict) -> bool:
    """Weights, BatchNorm's statistics and momentum, bit for bit."""
    models = state["model"].keys() == other["model"].keys() and all(
        torch.equal(tensor, other["model"][name]) for name, tensor in state["model"].items()
    )
    return models and all(map(torch.equal, momenta(state), momenta(other)))


def top1(state: dict) -> float:
    """In percent, on the fixed validation images, computed without ranks."""
    model = resnet18(num_classes=NUM_CLASSES).eval()
    model.load_state_dict(state["model"])
    with torch.no_grad():
        hits = [model(images).argmax(dim=1) == target for images, target in FixedLoader(range(NUM_VAL), 4)]
    return 100 * torch.cat(hits).float().mean().item()


@pytest.mark.launches
@pytest.mark.parametrize("name", STRATEGY_OF)
def test_an_example_trains_what_the_suite_times(name, tmp_path, tiny_data, by_suite):
    """It resumes after its first epoch. 23 images to validate are no multiple of two ranks, and count once each."""
    state, printed = train_example(name, tmp_path, tiny_data)
    assert are_equal(state, by_suite(STRATEGY_OF[name])) and state["epoch"] == EPOCHS
    assert re.findall(r"(?m)^epoch (\d): loss \d+\.\d+, top-1 [\d.]+ %, [\d.]+ images/s$", printed) == ["1", "2"]
    assert f"top-1 {top1(state):.1f} %" in printed.splitlines()[-1]


def test_the_learning_rate_is_the_suites():
    rate = runpy.run_path(str(EXAMPLES / "ddp.py"))["learning_rate"]
    for epochs, warmup in ((90, 5), (2, 0)):
        config = Config(epochs=epochs, lr_warmup_epochs=warmup, lr_schedule="cosine", global_batch=1024)
        args = Namespace(epochs=epochs, lr=0.1 * 1024 / 256)
        for tenth in range(10 * epochs):
            assert rate(args, tenth / 10) == learning_rate(config, tenth / 10)


@pytest.mark.launches
@pytest.mark.parametrize("name", ["single", "ddp"])
def test_an_example_learns(name, tmp_path):
    """On imagenet-mini, as configs/smoke.yaml."""
    batch_size, workers = (32, 1) if name in ONE_BATCH else (16, 0)
    words = f"--arch resnet18 --image-size 48 --batch-size {batch_size} --workers {workers} --epochs 2".split()
    data = ROOT / "data" / "imagenet-mini"
    printed = start_ranks(name, tmp_path, EXAMPLES / f"{name}.py", data, *words)
    learned = [float(text) for text in re.findall(r"top-1 ([\d.]+) %", printed)]
    assert len(learned) == 2 and learned[-1] > 25


@pytest.mark.launches
def test_the_slurm_script_starts_the_example(tmp_path, tiny_data):
    """With a stand-in for Slurm."""
    torchrun = f'exec {sys.executable} -m torch.distributed.run "$@"'
    put(tmp_path / "bin", srun='exec "$@"', scontrol="echo localhost", torchrun=torchrun)
    env = environment(SLURM_JOB_ID=7, SLURM_JOB_NODELIST="node1", SLURM_NNODES=1, OMP_NUM_THREADS=1)
    env["PATH"] = f"{tmp_path / 'bin'}:{env['PATH']}"
    words = ["--arch", "resnet18", "--image-size", "32", "--batch-size", "4", "--workers", "0", "--epochs", "1"]
    command = ["bash", EXAMPLES / "ddp.sbatch", tiny_data, *words]
    (tmp_path / "examples").symlink_to(EXAMPLES)
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "epoch 0: loss " in done.stdout, done.stdout + done.stderr
