"""Model, pipeline and hybrid parallel compute the update that one process computes, and stages share the model.

The ranks are real: torchrun starts the scripts, gloo connects them, and their checkpoints are compared bit for
bit with a plain loop in this process.
"""

import dataclasses
import itertools
import json
import random
import subprocess
import tempfile
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from support import ROOT, environment, make_run_folder
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import model_parallel, single
from benchmarks.common.config import Config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer, learning_rate
from benchmarks.common.rank import Rank
from benchmarks.common.stages import (
    FLOPS_PER_BYTE,
    balanced_cuts,
    block_times,
    cut_column,
    find_cuts,
    num_splits,
    stages_at,
)
from scripts.studies.allreduce import launch_ranks

CPU = torch.device("cpu")
SMALL = Config(
    arch="resnet18",
    image_size=32,
    workers=0,
    global_batch=16,
    steps=4,
    lr_schedule="cosine",
    warmup_steps=2,
    windows=1,
    window_steps=2,
    microbatches=4,
    split_size=4,
)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Sums in another order have other last bits: the ranks and this process all use one thread."""
    monkeypatch.setenv("THREADS_PER_RANK", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> str:
    """A data set of three classes, in each of which one colour prevails: 24 JPEG files to train on, 7 to validate."""
    root, noise = tmp_path_factory.mktemp("photographs"), numpy.random.default_rng(0)
    for number in range(31):
        kind = number % 3
        pixels = noise.integers(0, 160, (40, 40, 3), dtype=numpy.uint8)
        pixels[..., kind] += 90
        folder = root / ("train" if number < 24 else "val") / f"class{kind}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.JPEG")
    return str(root)


def random_images(num_images: int, dtype=torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(num_images, 3, 32, 32, generator=generator, dtype=dtype)


# --- cutting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["resnet18", "resnet50"])
def test_stages_in_turn_are_the_model_for_every_cut(arch):
    """Protects the order and completeness of stages: no layer lost, doubled or swapped."""
    net = build_model(Config(arch=arch), 10).eval()
    num_blocks = len(stages_at(net, find_cuts(Config(arch=arch, image_size=32), net, 1))[0])
    images = random_images(2)
    with torch.no_grad():
        expected = net(images)
        for cut in range(1, num_blocks):
            config = Config(arch=arch, image_size=32, cut=cut)
            first, second = stages_at(net, find_cuts(config, net, 2))
            assert len(first) == cut == cut_column([cut])
            assert torch.equal(second(first(images)), expected)
        stages = stages_at(net, find_cuts(Config(arch=arch, image_size=32), net, num_blocks))  # one block each
        assert torch.equal(torch.nn.Sequential(*stages)(images), expected)
        assert cut_column([*range(1, num_blocks)]) == ", ".join(map(str, range(1, num_blocks)))


@pytest.mark.parametrize("seed", range(20))
def test_balanced_cuts_are_the_best_of_all(seed):
    """Protects the search against every way of cutting, tried one by one."""
    draw = random.Random(seed)
    costs = [draw.randint(1, 20) for _ in range(draw.randint(1, 9))]
    num_parts = draw.randint(1, len(costs))

    def largest(cuts):
        return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)]))

    cuts = balanced_cuts(costs, num_parts)
    assert len(cuts) == num_parts - 1 and sorted(set(cuts)) == cuts and all(0 < cut < len(costs) for cut in cuts)
    assert largest(cuts) == min(map(largest, itertools.combinations(range(1, len(costs)), num_parts - 1)))


def test_times_are_of_a_roofline():
    """Protects the estimate: a ReLU takes what it reads and writes, a large convolution what it computes, a view
    nothing. Weights are read once for a whole micro-batch. Mutants: no weights; the weights of each image."""
    relu, conv = nn.ReLU(), nn.Conv2d(3, 512, 31, padding=15, bias=False)
    image_bytes, pixels = 4 * 3 * 64 * 64, 64 * 64
    (moved,), (computed,) = block_times([relu], 64), block_times([conv], 64)
    assert moved == 2 * image_bytes
    assert computed == pytest.approx(2 * 3 * 512 * 31 * 31 * pixels / FLOPS_PER_BYTE)
    assert block_times([nn.Flatten(1)], 64) == [0]
    assert block_times([nn.Conv2d(3, 3, 1, bias=False)], 64) == [2 * image_bytes + 4 * 3 * 3]
    assert block_times([nn.Conv2d(3, 3, 1, bias=False)], 64, 8) == [8 * 2 * image_bytes + 4 * 3 * 3]


def test_mistakes_are_named():
    net = build_model(SMALL, 10)
    with pytest.raises(UserError, match="cut 8 is out of range: resnet18 has 8 blocks, which allows 1 to 7"):
        find_cuts(dataclasses.replace(SMALL, cut=8), net, 2)
    with pytest.raises(UserError, match="too few for 9 stages"):
        find_cuts(SMALL, net, 9)
    with pytest.raises(UserError, match="cut 3 is for two stages, and this run has 4; use --cut auto"):
        find_cuts(dataclasses.replace(SMALL, cut=3), net, 4)
    with pytest.raises(UserError, match="split_size 17 is larger than the 16 images"):
        num_splits(17, 16)
    assert [num_splits(size, 16) for size in (0, 16, 8, 5, 1)] == [1, 1, 2, 4, 16]


# --- the same update -------------------------------------------------------------------------------------------


def micro_batched(config: Config, shards: int, split_size: int, together: bool):
    """The reference: model and optimizer after config.steps in one process, without stages or ranks.

    Shards come one after the other, in micro-batches, and all their losses are averaged; shard 0's running
    statistics stay. together: a shard's micro-batches share one backward pass, of the loss of all their outputs.
    """
    loaders = [build_loaders(config, Rank(shard, 0, shards, shards))[0] for shard in range(shards)]
    net = build_model(config, len(loaders[0].classes))
    optimizer = build_optimizer(config, net)
    for n, batches in enumerate(zip(*loaders, strict=True)):
        optimizer.param_groups[0]["lr"] = learning_rate(config, n / config.steps)
        optimizer.zero_grad()
        for shard, (images, target) in enumerate(batches):
            buffers = [buffer.clone() for buffer in net.buffers()]
            if together:
                output = torch.cat([net(split) for split in images.split(split_size)])
                (cross_entropy(output, target) / shards).backward()
            else:
                splits = list(zip(images.split(split_size), target.split(split_size), strict=True))
                for images_part, target_part in splits:
                    (cross_entropy(net(images_part), target_part) / len(splits) / shards).backward()
            if shard > 0:
                for buffer, of_shard_0 in zip(net.buffers(), buffers, strict=True):
                    buffer.copy_(of_shard_0)
        optimizer.step()
    return net, optimizer


def assert_same_state(folder: Path, net, optimizer):
    """The checkpoint holds these weights, running statistics and momenta, to the last bit."""
    state = torch.load(folder / "last.pt", weights_only=True)
    for name, value in net.state_dict().items():
        assert torch.equal(state["model"][name], value), f"{name} differs"
    momenta = optimizer.state_dict()["state"]
    assert state["optimizer"]["state"].keys() == momenta.keys()
    for key, value in momenta.items():
        saved = state["optimizer"]["state"][key]["momentum_buffer"]
        assert torch.equal(saved, value["momentum_buffer"]), f"momentum of parameter {key} differs"


def assert_exact_evaluation(row: dict, config: Config, net):
    """The ranks' loss and accuracy are those of one process over all 7 images."""
    _, val = build_loaders(config, Rank())
    ((images, target),) = val
    with torch.no_grad():
        output = net.eval()(images)
    assert row["val_samples"] == len(target) == 7
    assert row["val_loss"] == pytest.approx(cross_entropy(output, target).item(), rel=1e-5)
    assert row["acc1"] == pytest.approx(100 * (output.argmax(1) == target).float().mean().item())


def torchrun(config: Config, module: str, *flags: str) -> dict:
    """Run a script on two ranks with `config`, and `flags` on top; returns its columns of runs.csv."""
    run_dir = make_run_folder(Path(config.checkpoint_dir) / "logs" / "run")
    changed = {name: value for name, value in vars(config).items() if value != getattr(Config(), name)}
    options = [text for name, value in changed.items() for text in ("--" + name.replace("_", "-"), str(value))]
    start, variables = launch_ranks.torchrun_command(2, tempfile.mkdtemp(dir=run_dir))
    command = [*start, "-m", module]
    run = subprocess.run(
        [*command, *options, *flags],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env=environment(**variables, OMP_NUM_THREADS=1, RUN_DIR=run_dir),
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return json.loads((run_dir / "summary.json").read_text())["row"]


@pytest.mark.medium
@pytest.mark.parametrize("memory_format", ["contiguous", pytest.param("channels_last", marks=pytest.mark.slow)])
def test_pipeline_is_its_micro_batches_one_after_the_other(tmp_path, photographs, memory_format):
    """Two real ranks: GPipe trains 4 steps and leaves a checkpoint in the middle, from which 1F1B goes on.

    Protects the mean over micro-batches, BatchNorm's running statistics, the targets' way to the last rank, the
    gathering of weights, statistics and momenta before evaluation and checkpoints, and resuming.
    """
    config = dataclasses.replace(
        SMALL, data=photographs, split_size=0, memory_format=memory_format, checkpoint_dir=str(tmp_path)
    )
    net, optimizer = micro_batched(config, shards=1, split_size=4, together=False)
    row = torchrun(config, "benchmarks.pipeline_parallel", "--checkpoint-steps", "2", "--pipeline-schedule", "gpipe")
    assert_same_state(tmp_path, net, optimizer)
    assert_exact_evaluation(row, config, net)
    assert torch.load(tmp_path / "previous.pt", weights_only=True)["step"] == 2
    row = torchrun(config, "benchmarks.pipeline_parallel", "--resume", "--resume-from", "previous")
    assert_same_state(tmp_path, net, optimizer)
    assert_exact_evaluation(row, config, net)


@pytest.mark.medium
def test_hybrid_is_two_shards_averaged(tmp_path, photographs):
    """Two real ranks, each in two stages and two micro-batches. Protects DDP around a staged model, the averaging
    over ranks, and that rank 0's statistics are what every rank evaluates with."""
    config = dataclasses.replace(SMALL, data=photographs, checkpoint_dir=str(tmp_path))
    net, optimizer = micro_batched(config, shards=2, split_size=4, together=True)
    row = torchrun(config, "benchmarks.hybrid_parallel")
    assert_same_state(tmp_path, net, optimizer)
    assert_exact_evaluation(row, config, net)


@pytest.mark.medium
def test_model_parallel_without_micro_batches_is_single(tmp_path, photographs):
    """Both scripts from end to end. Protects predict, the checkpoint's names, and that staging changes nothing."""
    states = []
    for script in (single, model_parallel):
        folder = tmp_path / script.__name__
        fit(script.build(dataclasses.replace(SMALL, data=photographs, split_size=0, checkpoint_dir=str(folder))))
        states.append(torch.load(folder / "last.pt", weights_only=True)["model"])
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.medium
def test_model_parallel_in_micro_batches(tmp_path, photographs):
    """Protects split_size: one loss over the outputs of all micro-batches, in their order."""
    config = dataclasses.replace(SMALL, data=photographs, checkpoint_dir=str(tmp_path))
    fit(model_parallel.build(config))
    assert_same_state(tmp_path, *micro_batched(config, shards=1, split_size=4, together=True))
