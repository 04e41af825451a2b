"""The families of torchvision's models: how each is built, and the blocks between which it can be cut.

family_of(net).parts(net)    # net's own modules, a list for each block
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn
from torchvision.models import ConvNeXt, ResNet, VisionTransformer
from torchvision.models.convnext import CNBlock
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.vision_transformer import EncoderBlock

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config


@dataclasses.dataclass(frozen=True)
class Family:
    """Models of one class. blocks: the classes of their residual blocks. build: the model of config.arch on the default
    device. parts: a model's own modules in their order, a list for each residual block; the first has the stem, the
    last the head."""

    model: type[nn.Module]
    blocks: tuple[type[nn.Module], ...]
    build: Callable[[Config, int], nn.Module]
    parts: Callable[[Any], list[list[nn.Module]]]


def family_of(net: nn.Module) -> Family:
    """The family of a model, also of one whose class is derived from torchvision's, as fully_shard does."""
    return next(family for family in FAMILIES.values() if isinstance(net, family.model))


def residual_blocks(net: nn.Module) -> dict[str, nn.Module]:
    """The residual blocks of a model by their names in it, in order."""
    kinds = family_of(net).blocks
    return {name: module for name, module in net.named_modules() if isinstance(module, kinds)}


def draw_model(config: Config, num_classes: int) -> nn.Module:
    """The model of config.arch on the default device, with weights drawn from torch's random numbers."""
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


def build_convnext(config: Config, num_classes: int) -> nn.Module:
    """Without stochastic depth: each rank would leave out other blocks, so that no two strategies would agree."""
    return getattr(torchvision.models, config.arch)(num_classes=num_classes, stochastic_depth_prob=0.0)


def convnext_parts(net: ConvNeXt) -> list[list[nn.Module]]:
    parts: list[list[nn.Module]] = []
    before: list[nn.Module] = []
    for layer in net.features:
        if not isinstance(layer[0], CNBlock):
            before.append(layer)
            continue
        for block in layer:
            parts.append([*before, block])
            before = []
    parts[-1] += [net.avgpool, net.classifier]
    return parts


def build_vit(config: Config, num_classes: int) -> nn.Module:
    """For images of config.image_size alone. Without torch's fast path of attention, which no FLOP counter knows."""
    torch.backends.mha.set_fastpath_enabled(False)
    return getattr(torchvision.models, config.arch)(num_classes=num_classes, image_size=config.image_size)


def vit_parts(net: VisionTransformer) -> list[list[nn.Module]]:
    parts: list[list[nn.Module]] = [[block] for block in net.encoder.layers]
    parts[0] = [Tokens(net), *parts[0]]
    parts[-1] += [net.encoder.ln, FirstToken(), net.heads]
    return parts


class Tokens(nn.Module):
    """What a vision transformer does before its blocks: images (N, 3, H, W) to tokens (N, 1 + patches, width)."""

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
    "ConvNeXt": Family(ConvNeXt, (CNBlock,), build_convnext, convnext_parts),
    "VisionTransformer": Family(VisionTransformer, (EncoderBlock,), build_vit, vit_parts),
}
