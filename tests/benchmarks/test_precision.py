"""bf16 put on where the model is built is the bf16 that a script's own autocast computes.

.venv/bin/python -m pytest tests/benchmarks/test_precision.py
"""

import copy

import pytest
import torch
from support import run_strategy
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.common.config import Config
from benchmarks.common.model import autocast_forward, build_model
from benchmarks.common.rank import Rank, prepare
from scripts.memory.memory_check import resolve_config
from scripts.shared.strategy_list import has_fact

CPU = torch.device("cpu")


def small(precision):
    return Config(arch="resnet18", image_size=32, global_batch=4, precision=precision)


def gradients(model, images, target, context):
    with context:
        loss = cross_entropy(model(images), target)
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.medium
def test_a_plain_step_computes_what_a_step_in_autocast_does():
    """Protects `precision bf16`: the same bits in loss and gradients, weights under the same names, float32 scores."""
    images, target = torch.randn(4, 3, 32, 32), torch.arange(4)
    wrapped, plain = build_model(small("bf16"), 4), build_model(small("fp32"), 4)
    assert wrapped(images).dtype == torch.float32 and [*wrapped.state_dict()] == [*plain.state_dict()]
    wrapped.load_state_dict(plain.state_dict())  # the forward pass above moved BatchNorm's statistics
    ours = gradients(wrapped, images, target, torch.enable_grad())
    theirs = gradients(plain, images, target, torch.autocast("cpu", torch.bfloat16))
    assert all(map(torch.equal, ours, theirs))
    exact = gradients(copy.deepcopy(plain).float(), images, target, torch.autocast("cpu", enabled=False))
    assert not torch.equal(ours[0], exact[0])


def test_a_replica_computes_with_its_own_weights():
    """Protects DataParallel: a `forward` set on the module would go on calling the module that was copied."""
    net = build_model(small("bf16"), 4).eval()
    replica = net._replicate_for_data_parallel()
    replica.fc = nn.Linear(net.fc.in_features, 4)
    images = torch.randn(2, 3, 32, 32)
    assert replica(images).dtype == torch.float32 and not torch.equal(replica(images), net(images))


def test_other_precisions_leave_the_module_as_it_is():
    """Protects fp32: no class, and no cast, is put between."""
    net = build_model(small("fp32"), 4)
    assert autocast_forward(small("tf32"), net) is net and type(net).__name__ == "ResNet"


@pytest.mark.parametrize(
    "precision, name, expected",
    [("fp32", "single", "contiguous"), ("bf16", "single", "channels_last"), ("fp32", "ddp_amp", "channels_last")],
)
def test_the_memory_format_follows_from_the_precision(precision, name, expected):
    """Protects memory_format auto in a run and in its forecast: each computes in the format that its row names."""
    mixed = has_fact(name, "mixed_precision")
    config = prepare(small(precision), Rank(), mixed)
    model = build_model(config, 4)
    layouts = {
        "contiguous": model.conv1.weight.is_contiguous(),
        "channels_last": model.conv1.weight.is_contiguous(memory_format=torch.channels_last),
    }
    assert config.memory_format == expected and layouts[expected]
    assert resolve_config(name, small("bf16"), 1).memory_format == "channels_last"


@pytest.mark.slow
def test_ddp_in_bf16_trains_the_weights_of_ddp_amp(tmp_path, tiny_data, tiny_config):
    """Protects the comparison of the two over real ranks: whoever puts the casts on, they are the same."""
    found = {}
    for name in ("ddp", "ddp_amp"):
        args = f"--precision bf16 --no-augment --checkpoint-dir {tmp_path / name}"
        row = run_strategy(name, tmp_path / "set", args, DATA=tiny_data, CONFIG=tiny_config, NPROC=2)
        assert (row["status"], row["precision"], row["memory_format"]) == ("ok", "bf16", "channels_last"), row["reason"]
        found[name] = torch.load(tmp_path / name / f"{name}-1" / "last.pt", weights_only=True)["model"]
    assert all(torch.equal(tensor, found["ddp_amp"][name]) for name, tensor in found["ddp"].items())
