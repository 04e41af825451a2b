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
    "vit_b_16",
]
OPTIMIZER_FIELDS = ("lr", "lr_batch", "weight_decay", "momentum")
"""Their values are meant for one optimizer."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """family: its entry in FAMILIES.
    defaults: of fields that neither a file nor a flag sets.
    normalisation: LayerNorm's results are float32, also in bf16.
    patch_size: image_size is a multiple of it."""

    family: str = "ResNet"
    normalisation: Literal["BatchNorm", "LayerNorm"] = "BatchNorm"
    optimizer: Literal["SGD", "AdamW"] = "SGD"
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patch_size: int = 1


ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(typing.get_args(Arch), Architecture()),
    "vit_b_16": Architecture(
        family="VisionTransformer",
        normalisation="LayerNorm",
        optimizer="AdamW",
        # torchvision, references/classification/README.md, vit_b_16: 64 GPUs of 64 images
        defaults={"lr": 3e-3, "lr_batch": 4096, "weight_decay": 0.3},
        patch_size=16,
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
    if rest := image_size % facts.patch_size:
        above = image_size - rest + facts.patch_size
        return (
            f"image_size {image_size} is not a multiple of {arch}'s patches of {facts.patch_size} pixels; use {above}"
        )
    return ""
