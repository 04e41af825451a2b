"""What strategies do on GPUs, held where there is none (tests/fake_gpus.py).

Nothing on the way may look at a tensor (`.item()`, a branch on its values), which would have the host wait for the GPU
in every step, and none may be on another device than those that it meets. The backward pass only says which parameters
it reaches.
"""

import dataclasses

import pytest
import torch
import torch.distributed as dist
from fake_gpus import STEPS, see_gpus, train_on_nothing
from stand_ins import NO_STAND_IN, start_fake_group
from support import STRATEGIES
from torch import nn

from benchmarks import fsdp, zero1
from benchmarks.common.config import Config
from benchmarks.common.errors import Unavailable

SMALL = Config(arch="resnet18", image_size=32, global_batch=8, loader="synthetic", **STEPS)
FAST = {"ddp", "model_parallel"}
# The second of 2 ranks on a machine with 4 GPUs, which has no GPU 0; and a pipeline's first, which has the images.
CASES = [(name, 1) for name in STRATEGIES if name not in NO_STAND_IN] + [("pipeline_parallel", 0)]


@pytest.mark.parametrize(
    ("name", "rank"), [pytest.param(*case, marks=() if case[0] in FAST else pytest.mark.launches) for case in CASES]
)
def test_no_step_looks_at_a_tensor_or_mixes_gpus(monkeypatch, name, rank):
    """Steps, meter, evaluation and step breakdown."""
    see_gpus(monkeypatch, 4)
    train_on_nothing(monkeypatch, name, SMALL, rank=rank)


@pytest.mark.parametrize("num_gpus, searches", [(1, True), (2, False)])
def test_dataparallel_does_not_search_for_algorithms_in_every_step(monkeypatch, num_gpus, searches):
    """torch starts a thread a GPU in every forward pass, and cuDNN's plans are kept by thread."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    see_gpus(monkeypatch, num_gpus)
    found = []

    def look(strategy) -> None:
        found.append((torch.backends.cudnn.benchmark, dict(strategy.columns)))

    train_on_nothing(monkeypatch, "dataparallel", SMALL, drive=look)
    assert found == [(searches, {} if searches else {"cudnn_benchmark": False})]


def test_a_pipeline_of_more_stages_than_blocks_is_skipped(monkeypatch):
    """Protects make bench-all on many GPUs from a failed row: ResNet-18 has 8 blocks."""
    see_gpus(monkeypatch, 9)
    config = dataclasses.replace(SMALL, global_batch=72)
    built = []
    with monkeypatch.context() as patch:
        train_on_nothing(patch, "pipeline_parallel", config, 7, 8, drive=built.append)
    assert [strategy.columns["cut"] for strategy in built] == ["1, 2, 3, 4, 5, 6, 7"]
    with pytest.raises(Unavailable, match="8 blocks"):
        train_on_nothing(monkeypatch, "pipeline_parallel", config, 8, 9)


@pytest.fixture
def build_as_first_of_two(monkeypatch):
    """Builds a script as rank 0 of 2 on CPUs, of which the other is not there: collectives do nothing."""
    for name, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    start = dist.init_process_group
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: start_fake_group(start, 0, 2))
    yield lambda script, **changes: script.build(dataclasses.replace(SMALL, **changes))
    dist.destroy_process_group()


def test_fsdp_gathers_the_norms_of_a_block_at_once_and_updates_all_shards_by_a_few_kernels(build_as_first_of_two):
    """Each group is a gather, and torch's default for DTensors is a kernel for each of 644."""
    strategy = build_as_first_of_two(fsdp, precision="bf16")
    states = [each._get_fsdp_state() for each in strategy.model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert len({id(state._fsdp_param_group) for state in states}) == 8 + 1  # of 8 blocks and the stem
    assert all(state._mp_policy.param_dtype is None for state in states)  # bf16 beside float32 statistics is refused
    assert all(group["foreach"] and not group["fused"] for group in strategy.optimizer.param_groups)


def test_zero1_sends_a_ranks_share_as_one_tensor(build_as_first_of_two, monkeypatch):
    """And not a broadcast for each weight."""
    strategy, sent = build_as_first_of_two(zero1, memory_format="contiguous"), []
    for parameter in strategy.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    broadcast = dist.broadcast
    monkeypatch.setattr(
        dist, "broadcast", lambda tensor, *args, **options: sent.append(tensor) or broadcast(tensor, *args, **options)
    )
    strategy.optimizer.step()
    assert len(sent) == 2
