"""The model, its optimizer and its learning rate."""

import dataclasses

import pytest
import torch
import torchvision
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.model import (
    build_model,
    draw_model,
    flops_per_image,
    learning_rate,
    peak_learning_rate,
    refuse_single_values,
)

SMALL = Config(arch="resnet18", image_size=32, global_batch=4)
pytestmark = pytest.mark.usefixtures("small_model")


@pytest.mark.parametrize("arch", ["resnet50", "vit_b_16"])
def test_parameters_and_flops_are_those_that_torchvision_publishes(arch):
    """torchvision counts multiply-adds of a forward pass. And nothing is left out at random."""
    published = torchvision.models.get_model_weights(arch)["IMAGENET1K_V1"].meta
    with torch.device("meta"):
        net = draw_model(Config(arch=arch), 1000)
    assert sum(parameter.numel() for parameter in net.parameters()) == published["num_params"]
    assert flops_per_image(Config(arch=arch), 1000) == pytest.approx(3 * 2 * published["_ops"] * 1e9, rel=0.005)
    assert not any(getattr(module, "p", 0) for module in net.modules())


def test_every_rank_starts_from_the_seeds_weights():
    torch.manual_seed(99)  # whatever was drawn before
    first, again, other = (build_model(dataclasses.replace(SMALL, seed=seed), 4) for seed in (0, 0, 1))
    assert torch.equal(first.conv1.weight, again.conv1.weight)
    assert not torch.equal(first.conv1.weight, other.conv1.weight)


# --- bf16 ---------------------------------------------------------------------------------------------------------


def gradients(model, images, context) -> list[torch.Tensor]:
    with context:
        loss = cross_entropy(model(images), torch.arange(4))
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


def test_a_plain_step_in_bf16_computes_what_a_step_in_autocast_does():
    """To the last bit."""
    images = torch.randn(4, 3, 32, 32)
    wrapped, plain = build_model(dataclasses.replace(SMALL, precision="bf16"), 4), build_model(SMALL, 4)
    ours = gradients(wrapped, images, torch.enable_grad())
    assert all(map(torch.equal, ours, gradients(plain, images, torch.autocast("cpu", torch.bfloat16))))
    assert not torch.equal(ours[0], gradients(build_model(SMALL, 4), images, torch.enable_grad())[0])
    assert wrapped(images).dtype == torch.float32


def test_in_bf16_a_replica_of_dataparallel_computes_with_its_own_weights():
    net = build_model(dataclasses.replace(SMALL, precision="bf16"), 4).eval()
    replica = net._replicate_for_data_parallel()
    replica.fc = nn.Linear(net.fc.in_features, 4)
    images = torch.randn(2, 3, 32, 32)
    assert not torch.equal(replica(images), net(images))


def test_weights_lie_in_the_layout_that_the_configuration_names():
    for name, layout in (("contiguous", torch.contiguous_format), ("channels_last", torch.channels_last)):
        model = build_model(dataclasses.replace(SMALL, memory_format=name), 4)
        assert model.conv1.weight.is_contiguous(memory_format=layout)


def test_batch_norm_on_single_values_is_refused_before_the_first_step():
    """One image of 32 px is one value a channel in ResNet's last layers."""
    config = Config(image_size=32)
    with pytest.raises(UserError, match="--global-batch"):
        refuse_single_values(config, 4, 1)
    refuse_single_values(config, 4, 2)
    refuse_single_values(dataclasses.replace(config, norm="group"), 4, 1)


# --- the learning rate and the optimizer --------------------------------------------------------------------------


def test_the_learning_rate_follows_the_batch_as_the_optimizer_needs():
    for arch, growth in (("resnet18", 16), ("vit_b_16", 4)):
        config = Config(arch=arch, lr=0.01, lr_batch=64, global_batch=1024)
        assert peak_learning_rate(config) == pytest.approx(0.01 * growth)


def test_the_learning_rate_climbs_and_falls_as_its_schedule_says():
    config = Config(lr=0.8, epochs=10, lr_warmup_epochs=2.0)
    assert [learning_rate(config, epoch) for epoch in (0, 1, 2, 9)] == pytest.approx([0, 0.4, 0.8, 0.8])
    cosine = dataclasses.replace(config, lr_schedule="cosine")
    assert [learning_rate(cosine, epoch) for epoch in (1, 2, 6, 10)] == pytest.approx([0.4, 0.8, 0.4, 0])
    steps = dataclasses.replace(config, lr_schedule="steps", epochs=90)
    assert [learning_rate(steps, epoch) for epoch in (29, 30, 60)] == pytest.approx([0.8, 0.08, 0.008])
