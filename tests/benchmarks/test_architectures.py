"""The architectures: their table, their optimizers, the blocks between which they are cut, and what they refuse.

.venv/bin/python -m pytest tests/benchmarks/test_architectures.py
"""

import dataclasses
import itertools
import math
import typing

import pytest
import torch
import torchvision
from support import few_fast, run_strategy
from torch import nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.resnet import BasicBlock, ResNet
from torchvision.models.vision_transformer import VisionTransformer

from benchmarks.common.architectures import ARCHITECTURES, OPTIMIZER_FIELDS, Arch, architecture_of
from benchmarks.common.config import FIELDS, Config, load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from benchmarks.common.model import (
    FAMILIES,
    build_optimizer,
    draw_model,
    flops_per_image,
    learning_rate,
    peak_learning_rate,
    residual_blocks,
    state_of_zeros,
)
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.stages import (
    blocks_of,
    from_rows,
    stages_at,
    to_rows,
)

SMALL_NETS = {
    "resnet18": lambda: ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10),
    "convnext_tiny": lambda: ConvNeXt([CNBlockConfig(4, 8, 2), CNBlockConfig(8, 12, 1), CNBlockConfig(12, None, 2)]),
    "vit_b_16": lambda: VisionTransformer(32, 16, num_layers=3, num_heads=2, hidden_dim=8, mlp_dim=12),
}
NUM_BLOCKS = {"resnet18": 4, "convnext_tiny": 5, "vit_b_16": 3}


def small_net(arch: str) -> nn.Module:
    """A small model of the architecture's class, with weights of a size at which every layer counts: ConvNeXt's blocks
    begin with a scale of 1e-6, and a vision transformer's classifier with zeros."""
    torch.manual_seed(0)
    net = SMALL_NETS[arch]()
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net


def random_images(num_images: int = 2, size: int = 32) -> torch.Tensor:
    return torch.randn(num_images, 3, size, size, generator=torch.Generator().manual_seed(1))


# --- the table -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "images", "rate_on_8"),
    [
        ("imagenet-resnet50", 256, 0.8),  # 0.1 for 256 images, in proportion
        ("imagenet-convnext-tiny", 128, 0.002),  # 0.004 for 4096 images; with AdamW by the square root
        ("imagenet-vit-b-16", 128, 0.0015),
    ],
)
def test_a_full_training_keeps_each_gpu_busy_and_its_learning_rate_follows(name, images, rate_on_8):
    """Protects trainings on many GPUs: 256 images over eight were 32 on each."""
    config = load_config(["--config", f"configs/{name}.yaml"])
    on_8 = resolve_global_batch(config, 8)
    assert (resolve_global_batch(config, 1).global_batch, on_8.global_batch) == (images, 8 * images)
    assert peak_learning_rate(on_8) == pytest.approx(rate_on_8)


def test_the_table_has_every_architecture_and_every_family():
    """Protects `--arch`: a name that the flag takes has a line in the table, and a family that builds it."""
    assert {*typing.get_args(Arch)} == ARCHITECTURES.keys()
    assert {facts.family for facts in ARCHITECTURES.values()} == FAMILIES.keys()
    assert {*OPTIMIZER_FIELDS} <= FIELDS.keys()
    assert all(facts.defaults.keys() <= {*OPTIMIZER_FIELDS} for facts in ARCHITECTURES.values())


@pytest.mark.parametrize("arch", few_fast(ARCHITECTURES, {0}))
def test_published_parameters_and_flops_are_those_of_the_model(arch):
    """Protects MFU, and the model itself: torchvision's tables count parameters, and multiply-adds for 224 px."""
    published = torchvision.models.get_model_weights(arch)["IMAGENET1K_V1"].meta
    with torch.device("meta"):
        net = draw_model(Config(arch=arch), 1000)
    assert sum(parameter.numel() for parameter in net.parameters()) == published["num_params"]
    assert flops_per_image(Config(arch=arch), 1000) == pytest.approx(3 * 2 * published["_ops"] * 1e9, rel=0.005)
    assert type(net).__name__ == ARCHITECTURES[arch].family
    normalisation = {"BatchNorm": nn.BatchNorm2d, "LayerNorm": nn.LayerNorm}[ARCHITECTURES[arch].normalisation]
    assert any(isinstance(module, normalisation) for module in net.modules())


def test_a_model_draws_no_random_numbers_in_training():
    """Protects equal updates of all strategies: no block is left out at random, and nothing is dropped."""
    for arch in ("convnext_tiny", "vit_b_16"):
        with torch.device("meta"):
            net = draw_model(Config(arch=arch), 10)
        rates = [module.p for module in net.modules() if hasattr(module, "p")]
        assert rates and {*rates} == {0.0}
    net = small_net("vit_b_16")
    before = torch.get_rng_state()
    net(random_images())
    assert torch.equal(before, torch.get_rng_state())


# --- the configuration ---------------------------------------------------------------------------------------------


def loaded(*flags: str) -> tuple[float, int, float]:
    config = load_config([*flags])
    return config.lr, config.lr_batch, config.weight_decay


def test_adamw_has_defaults_of_its_own(tmp_path):
    """Protects a user who adds `--arch` to a command for ResNets from SGD's learning rate, with which AdamW diverges;
    and a user who chooses values for AdamW from losing them."""
    with_arch, without = tmp_path / "with.yaml", tmp_path / "without.yaml"
    with_arch.write_text("arch: resnet18\nlr: 0.5\nweight_decay: 0.25\n")
    without.write_text("lr: 0.002\n")
    assert loaded() == (0.1, 256, 1e-4) and loaded("--arch", "resnet18") == (0.1, 256, 1e-4)
    assert loaded("--arch", "vit_b_16") == (3e-3, 4096, 0.3) and loaded("--arch=convnext_tiny") == (4e-3, 4096, 0.05)
    assert loaded("--arch", "vit_b_16", "--lr", "0.1", "--weight-decay", "1e-4") == (0.1, 4096, 1e-4)
    assert loaded("--config", str(with_arch), "--arch", "vit_b_16") == (3e-3, 4096, 0.3)
    assert loaded("--config", str(with_arch), "--arch", "resnet50") == (0.5, 256, 0.25)
    assert loaded("--config", str(without), "--arch", "vit_b_16") == (2e-3, 4096, 0.3)
    assert architecture_of("no such name").optimizer == "SGD"  # which tyro refuses


@pytest.mark.parametrize("lr", [0.1, 3e-3, 0.7])
def test_a_run_reads_what_was_planned_for_it(tmp_path, lr):
    """Protects values that are a ResNet's default and were typed for another model: a run's file holds what differs
    from the defaults. Mutant: write_plan without the architecture's own."""
    config = Config(arch="vit_b_16", lr=lr, lr_batch=256, weight_decay=1e-4)
    folder = RunFolder.create(tmp_path, "single", 1)
    folder.write_plan(config, {})
    assert load_config(["--config", str(folder.plan)]) == dataclasses.replace(config, config=str(folder.plan))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--arch vit_b_16 --norm group", "norm group: vit_b_16 has LayerNorm, which --norm does not replace; leave"),
        ("--arch convnext_tiny --norm sync", "norm sync: convnext_tiny has LayerNorm"),
        ("--arch vit_b_16 --image-size 56", "is not a multiple of vit_b_16's patches of 16 pixels; use 64"),
        ("--arch vit_b_16 --image-size 8", "patches of 16 pixels; use 16"),
        ("--arch convnext_tiny --image-size 31", "image_size is 31, but must be at least 32 for convnext_tiny"),
    ],
)
def test_what_a_model_does_not_have_is_refused(flags, sentence):
    """Protects the user from a norm that is not the model's, and from an error of a kernel in every rank."""
    with pytest.raises(UserError, match=sentence):
        load_config(flags.split())


# --- the optimizer -------------------------------------------------------------------------------------------------


def test_the_learning_rate_follows_the_batch_as_the_optimizer_needs():
    """Protects both rules: 16 times the batch is 16 times SGD's learning rate, and 4 times AdamW's."""
    for arch, growth in (("resnet18", 16), ("vit_b_16", 4)):
        config = Config(arch=arch, lr=0.01, lr_batch=64, global_batch=64)
        more = dataclasses.replace(config, global_batch=1024)
        assert peak_learning_rate(config) == 0.01 and peak_learning_rate(more) == pytest.approx(0.01 * growth)
        warming = dataclasses.replace(more, lr_warmup_epochs=2.0)
        assert learning_rate(warming, 1.0) == pytest.approx(0.01 * growth / 2)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(("arch", "momentum"), [("resnet18", 0.9), ("resnet18", 0.0), ("vit_b_16", 0.9)])
def test_state_of_zeros_is_what_the_optimizer_starts_from(arch, momentum, fused):
    """Protects checkpoints of zero1 and pipelines: what a rank sends in place of what another keeps has its names,
    types and shapes, and a step from zeros is the first step."""
    config = Config(arch=arch, momentum=momentum, fused=fused, lr=0.1)
    weights = []
    for from_zeros in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = build_optimizer(config, model)
        expected = state_of_zeros(config, model.weight)
        if from_zeros:
            for parameter in model.parameters():
                optimizer.state[parameter].update(state_of_zeros(config, parameter))
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter) * 0.5
        optimizer.step()
        found = {name: value for name, value in optimizer.state[model.weight].items() if value is not None}
        assert found.keys() == expected.keys()
        assert all(
            (found[name].dtype, found[name].shape) == (each.dtype, each.shape) for name, each in expected.items()
        )
        weights.append(model.weight.detach().clone())
    assert torch.equal(*weights)


def test_adamw_takes_the_configurations_values():
    """Protects fields from being read by SGD only."""
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(Config(arch="vit_b_16", lr=0.02, momentum=0.8, weight_decay=0.4), model)
    group = optimizer.param_groups[0]
    assert isinstance(optimizer, torch.optim.AdamW)
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.02, (0.8, 0.999), 0.4)
    sgd = build_optimizer(Config(), model).param_groups[0]
    assert (sgd["lr"], sgd["momentum"], sgd["weight_decay"], sgd["fused"]) == (0.1, 0.9, 1e-4, None)


# --- the blocks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", SMALL_NETS)
def test_blocks_in_turn_are_the_model_for_every_cut(arch):
    """Protects the order and completeness of stages. Mutants: the position embedding left out; a strided convolution
    with the block before it, which is caught by the shapes; no last LayerNorm."""
    net = small_net(arch).eval()
    assert len(blocks_of(net)) == len(residual_blocks(net)) == NUM_BLOCKS[arch]
    images = random_images()
    with torch.no_grad():
        expected = net(images)
        assert expected.std() > 0
        for num_cuts in range(NUM_BLOCKS[arch]):
            for cuts in itertools.combinations(range(1, NUM_BLOCKS[arch]), num_cuts):
                assert torch.equal(nn.Sequential(*stages_at(net, cuts))(images), expected), cuts


@pytest.mark.parametrize("arch", SMALL_NETS)
def test_gradients_of_stages_are_the_models(arch):
    """Protects training by stages: each parameter is in one block, and gets the gradient that it gets in the model."""
    net, images = small_net(arch), random_images()
    net(images).square().sum().backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    blocks = blocks_of(net)
    nn.Sequential(*blocks)(images).square().sum().backward()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(net.parameters(), expected, strict=True))
    owners = [id(parameter) for block in blocks for parameter in block.parameters()]
    assert sorted(owners) == sorted(map(id, net.parameters()))


@pytest.mark.parametrize("arch", SMALL_NETS)
@pytest.mark.parametrize("cut", [1, 2])
def test_rows_between_stages_change_no_bit(arch, cut):
    """Protects the proof of pipelines: scores and gradients through flat rows are those of the model to the last bit,
    for what a block hands on lies in memory as in the model. Mutant: ConvNeXt's rows in the order (C, H, W)."""
    net, images, config = small_net(arch), random_images(4, 64 if arch == "convnext_tiny" else 32), Config(arch=arch)
    net(images).square().sum().backward()
    expected = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    net.zero_grad()
    first, second = stages_at(net, [cut])
    activation = first(images)
    rows = to_rows(config, is_score=False)(activation)
    assert rows.is_contiguous() and rows.shape == (4, math.prod(activation.shape[1:]))
    sent = rows.detach().requires_grad_()
    back = from_rows(config, activation.shape[1:], is_image=False)(sent)
    assert torch.equal(back, activation)
    second(back).square().sum().backward()
    rows.backward(sent.grad)
    differing = [name for name, parameter in net.named_parameters() if not torch.equal(parameter.grad, expected[name])]
    assert differing == []


# --- real runs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero1", "fsdp", "local_sgd", "pipeline_parallel"])
def test_a_checkpoint_of_adamw_goes_to_ddp_and_back(tmp_path, tiny_data, tiny_config, strategy):
    """Protects both moments and the number of steps, whoever kept which part of them: ddp takes the checkpoint up, and
    counts on from it."""
    folder, own = tmp_path / "checkpoints", {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2}
    with torch.device("meta"):
        num_parameters = len([*draw_model(Config(arch="convnext_tiny"), 4).parameters()])
    for epochs, name in enumerate((strategy, "ddp", strategy), 1):
        args = f"--arch convnext_tiny --no-augment --epochs {epochs} --resume --checkpoint-dir {folder}"
        row = run_strategy(name, tmp_path / "set", args, **own)
        assert row["status"] == "ok", row["reason"]
        saved = torch.load(folder / f"{name}-1" / "last.pt", weights_only=True)
        states = saved["optimizer"]["state"].values()
        assert len(states) == num_parameters
        assert {float(state["step"]) for state in states} == {5.0 * epochs}
        (folder / f"{name}-1" / "last.pt").rename(folder / "last.pt")
