"""What is known of each architecture without torch."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

Arch = Literal[
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "resnext50_32x4d",
    "resnext101_32x8d",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "convnext_tiny",
    "vit_b_16",
]
OPTIMIZER_FIELDS = ("lr", "lr_batch", "weight_decay", "momentum")
"""Their values are meant for one optimizer."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """family: its entry in FAMILIES.
    defaults: of fields that neither a file nor a flag sets.
    patch_size: image_size is a multiple of it.
    float32_between_blocks: also in bf16.
    channels_last_between_blocks: in memory as (N, H, W, C), whatever memory_format says.
    last_exact_cut: the most blocks before a cut at which a pipeline agrees with the whole model to the last bit; 0:
    any."""

    family: str = "ResNet"
    normalisation: Literal["BatchNorm", "LayerNorm"] = "BatchNorm"
    optimizer: Literal["SGD", "AdamW"] = "SGD"
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    least_image_size: int = 1
    patch_size: int = 1
    float32_between_blocks: bool = False
    channels_last_between_blocks: bool = False
    last_exact_cut: int = 0


ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(typing.get_args(Arch), Architecture()),
    "convnext_tiny": Architecture(
        family="ConvNeXt",
        normalisation="LayerNorm",
        optimizer="AdamW",
        defaults={"lr": 4e-3, "lr_batch": 4096, "weight_decay": 0.05},  # arXiv:2201.03545, table 5
        least_image_size=32,  # the strides 4, 2, 2 and 2 leave one pixel of it
        float32_between_blocks=True,
        channels_last_between_blocks=True,
        last_exact_cut=15,  # of 18 blocks, 3 come after the last stride
    ),
    "vit_b_16": Architecture(
        family="VisionTransformer",
        normalisation="LayerNorm",
        optimizer="AdamW",
        # torchvision, references/classification/README.md, vit_b_16: 64 GPUs of 64 images
        defaults={"lr": 3e-3, "lr_batch": 4096, "weight_decay": 0.3},
        patch_size=16,
        float32_between_blocks=True,
    ),
}


def architecture_of(arch: str) -> Architecture:
    """A ResNet's for a name that is none."""
    return ARCHITECTURES.get(arch, Architecture())


def why_refused(arch: str, norm: str, image_size: int) -> str:
    """'' where the architecture takes these values."""
    facts = architecture_of(arch)
    if norm != "batch" and facts.normalisation != "BatchNorm":
        return f"norm {norm}: {arch} has {facts.normalisation}, which --norm does not replace; leave --norm out"
    if image_size < facts.least_image_size:
        return f"image_size is {image_size}, but must be at least {facts.least_image_size} for {arch}"
    if rest := image_size % facts.patch_size:
        above = image_size - rest + facts.patch_size
        return (
            f"image_size {image_size} is not a multiple of {arch}'s patches of {facts.patch_size} pixels; use {above}"
        )
    return ""
