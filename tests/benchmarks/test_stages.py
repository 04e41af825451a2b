"""Models cut into stages, which in turn are the model."""

import dataclasses
import itertools
import random

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.model import build_model, residual_blocks
from benchmarks.common.stages import (
    balanced_cuts,
    blocks_of,
    find_cuts,
    num_microbatches,
    num_splits,
    stages_at,
)

SMALL_NETS = {
    "resnet18": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10),
    "vit_b_16": lambda: VisionTransformer(32, 16, num_layers=3, num_heads=2, hidden_dim=8, mlp_dim=12),
}
NUM_BLOCKS = {"resnet18": 4, "vit_b_16": 3}


def small_net(arch: str) -> nn.Module:
    """With weights at which every layer counts."""
    torch.manual_seed(0)
    net = SMALL_NETS[arch]()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net


def gradients(net: nn.Module, forward, images: torch.Tensor) -> list[torch.Tensor]:
    net.zero_grad()
    forward(images).square().sum().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


# --- cutting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", SMALL_NETS)
def test_stages_in_turn_are_the_model_for_every_cut(arch):
    """No layer lost, doubled or swapped."""
    net, images = small_net(arch), torch.randn(2, 3, 32, 32)
    assert len(blocks_of(net)) == len(residual_blocks(net)) == NUM_BLOCKS[arch]
    found, expected = (gradients(net, forward, images) for forward in (nn.Sequential(*blocks_of(net)), net))
    assert all(map(torch.equal, found, expected))
    net.eval()
    with torch.no_grad():
        expected = net(images)
        for num_cuts in range(NUM_BLOCKS[arch]):
            for cuts in itertools.combinations(range(1, NUM_BLOCKS[arch]), num_cuts):
                assert torch.equal(nn.Sequential(*stages_at(net, cuts))(images), expected), cuts


def test_balanced_cuts_are_the_best_of_all():
    draw = random.Random(0)
    for _ in range(20):
        costs = [draw.randint(1, 20) for _ in range(draw.randint(1, 9))]
        num_parts = draw.randint(1, len(costs))

        def largest(cuts, costs=costs):
            return max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cuts, len(costs)]))

        cuts = balanced_cuts(costs, num_parts)
        assert len(cuts) == num_parts - 1 and sorted(set(cuts)) == cuts and all(0 < cut < len(costs) for cut in cuts)
        assert largest(cuts) == min(map(largest, itertools.combinations(range(1, len(costs)), num_parts - 1)))


def test_cuts_and_micro_batches_that_cannot_be_are_named():
    small = Config(arch="resnet18", image_size=32, global_batch=16)
    net = build_model(small, 10)
    for changes, num_stages, named in (({"cut": 8}, 2, "cut 8"), ({}, 9, "9 stages"), ({"cut": 3}, 4, "--cut auto")):
        with pytest.raises(UserError, match=named):
            find_cuts(dataclasses.replace(small, **changes), net, num_stages)
    with pytest.raises(UserError, match="split_size 17"):
        num_splits(17, 16)
    assert [num_splits(size, 16) for size in (0, 16, 5)] == [1, 1, 4]
    for microbatches, named in ((2, "gpipe"), (5, "5 microbatches")):
        with pytest.raises(UserError, match=named):
            num_microbatches(dataclasses.replace(small, microbatches=microbatches), 4)
    assert [num_microbatches(dataclasses.replace(small, global_batch=24), stages) for stages in (2, 3, 8)] == [4, 6, 8]
