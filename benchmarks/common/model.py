"""The model, its optimizer and its learning rate."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import ResNet, VisionTransformer
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.vision_transformer import EncoderBlock

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.loader import MEMORY_FORMATS


@dataclasses.dataclass(frozen=True)
class Family:
    """parts: a model's own modules in order, a list for each residual block, with the stem and the head."""

    model: type[nn.Module]
    blocks: tuple[type[nn.Module], ...]
    build: Callable[[Config, int], nn.Module]
    parts: Callable[[Any], list[list[nn.Module]]]


def family_of(net: nn.Module) -> Family:
    """fully_shard derives a class of its own."""
    return next(family for family in FAMILIES.values() if isinstance(net, family.model))


def residual_blocks(net: nn.Module) -> dict[str, nn.Module]:
    kinds = family_of(net).blocks
    return {name: module for name, module in net.named_modules() if isinstance(module, kinds)}


def draw_model(config: Config, num_classes: int) -> nn.Module:
    """On the default device."""
    return FAMILIES[ARCHITECTURES[config.arch].family].build(config, num_classes)


def build_resnet(config: Config, num_classes: int) -> nn.Module:
    options = {"norm_layer": functools.partial(nn.GroupNorm, 32)} if config.norm == "group" else {}
    return getattr(torchvision.models, config.arch)(num_classes=num_classes, **options)


def resnet_parts(net: ResNet) -> list[list[nn.Module]]:
    layers: list[nn.Sequential] = [net.layer1, net.layer2, net.layer3, net.layer4]
    parts: list[list[nn.Module]] = [[block] for layer in layers for block in layer]
    parts[0] = [net.conv1, net.bn1, net.relu, net.maxpool, *parts[0]]
    parts[-1] += [net.avgpool, nn.Flatten(1), net.fc]
    return parts


def build_vit(config: Config, num_classes: int) -> nn.Module:
    """Without torch's fast path of attention, which no FLOP counter knows."""
    torch.backends.mha.set_fastpath_enabled(False)
    return getattr(torchvision.models, config.arch)(num_classes=num_classes, image_size=config.image_size)


def vit_parts(net: VisionTransformer) -> list[list[nn.Module]]:
    parts: list[list[nn.Module]] = [[block] for block in net.encoder.layers]
    parts[0] = [Tokens(net), *parts[0]]
    parts[-1] += [net.encoder.ln, FirstToken(), net.heads]
    return parts


class Tokens(nn.Module):
    """Images (N, 3, H, W) to tokens (N, 1 + patches, width)."""

    def __init__(self, net: VisionTransformer):
        super().__init__()
        self.conv_proj, self.class_token = net.conv_proj, net.class_token
        self.pos_embedding, self.dropout = net.encoder.pos_embedding, net.encoder.dropout

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        class_tokens = self.class_token.expand(len(images), -1, -1)
        return self.dropout(torch.cat([class_tokens, patches], dim=1) + self.pos_embedding)


class FirstToken(nn.Module):
    """Tokens (N, tokens, width) to the class token alone, (N, width)."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, 0]


FAMILIES = {
    "ResNet": Family(ResNet, (BasicBlock, Bottleneck), build_resnet, resnet_parts),
    "VisionTransformer": Family(VisionTransformer, (EncoderBlock,), build_vit, vit_parts),
}


def build_model(config: Config, num_classes: int) -> nn.Module:
    """On the CPU, drawn from config.seed. In bf16 its forward pass autocasts."""
    torch.manual_seed(config.seed)
    model = draw_model(config, num_classes)
    if config.norm == "sync":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(memory_format=MEMORY_FORMATS[config.memory_format])
    model = autocast_forward(config, model)
    if config.compile:  # the module itself, so that its tensors keep their names
        model.compile(mode="reduce-overhead" if config.cuda_graphs else None)
    return model


ADAM_BETA2 = 0.999  # torch's default

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class InBf16(nn.Module):
    """A class: DataParallel's replicas would call a `forward` set on the module."""

    float32_output = True

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with torch.autocast(images.device.type, torch.bfloat16):
            output = super().forward(images)
        return output.float() if self.float32_output else output


def autocast_forward(config: Config, module: ModuleT, float32_output: bool = True) -> ModuleT:
    """float32_output: of scores."""
    if config.precision == "bf16":
        kind = type(module)
        module.__class__ = type(f"{kind.__name__}InBf16", (InBf16, kind), {"float32_output": float32_output})
    return module


def refuse_single_values(config: Config, num_classes: int, num_images: int) -> None:
    """Raises UserError where BatchNorm would train on one value a channel."""
    if num_images > 1 or config.norm == "group":
        return
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
            draw_model(config, num_classes)(torch.empty(1, 3, config.image_size, config.image_size))
    except ValueError:
        raise UserError(
            f"each part of a step is one image of {config.image_size} px, on which BatchNorm cannot train; use a "
            "larger --global-batch, a larger --image-size, fewer ranks or micro-batches, or --norm group"
        ) from None


def flops_per_image(config: Config, num_classes: int) -> int:
    """Of training: convolutions and products, a multiply-add counted as 2, three times a forward pass
    (arXiv:2204.02311, appendix B)."""
    with torch.device("meta"):
        net = draw_model(config, num_classes).eval()  # BatchNorm refuses to train on one small image
        image = torch.empty(1, 3, config.image_size, config.image_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(image)
    return 3 * counter.get_total_flops()


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    optimizer_class, options = optimizer_of(config)
    return optimizer_class(model.parameters(), **options)


def optimizer_of(config: Config) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """AdamW's first beta is `momentum`."""
    options = {"lr": config.lr, "weight_decay": config.weight_decay, "fused": config.fused or None}
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        return torch.optim.AdamW, options | {"betas": (config.momentum, ADAM_BETA2)}
    return torch.optim.SGD, options | {"momentum": config.momentum}


def state_of_zeros(config: Config, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """The optimizer's state of a parameter, as before the first step."""
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        num_steps = torch.zeros((), device=parameter.device if config.fused else "cpu")
        return {"step": num_steps} | {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return {"momentum_buffer": torch.zeros_like(parameter)} if config.momentum else {}


def start_momentum(optimizer: torch.optim.Optimizer) -> None:
    """SGD's fused update starts from unwritten memory (torch.optim.sgd._fused_sgd), and keeps it where a gradient
    scaler skips the first step."""
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("momentum") else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def learning_rate(config: Config, epoch: float) -> float:
    """epoch: a real number. Cosine: arXiv:1608.03983 without restarts."""
    peak = peak_learning_rate(config)
    if epoch < config.lr_warmup_epochs:
        return peak * epoch / config.lr_warmup_epochs
    if config.lr_schedule == "steps":
        return peak * 0.1 ** (epoch // 30)
    if config.lr_schedule == "cosine":
        span = max(config.epochs - config.lr_warmup_epochs, 1e-9)
        return peak * (1 + math.cos(math.pi * min(1.0, (epoch - config.lr_warmup_epochs) / span))) / 2
    return peak


def peak_learning_rate(config: Config) -> float:
    """SGD: arXiv:1706.02677. AdamW: arXiv:2205.10287."""
    if ARCHITECTURES[config.arch].optimizer == "AdamW":
        return config.lr * math.sqrt(config.global_batch / config.lr_batch)
    return config.lr * config.global_batch / config.lr_batch
