"""A torchvision model cut between residual blocks into stages."""

import copy
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.model import family_of


def balanced_cuts(costs: Sequence[float], num_parts: int) -> list[int]:
    """Of consecutive parts whose largest sum is as small as it can be."""

    @functools.cache
    def best(first: int, num: int) -> tuple[float, tuple[int, ...]]:
        if num == 1:
            return sum(costs[first:]), ()
        ways = []
        for cut in range(first + 1, len(costs) - num + 2):
            largest, cuts = best(cut, num - 1)
            ways.append((max(sum(costs[first:cut]), largest), (cut, *cuts)))
        return min(ways)

    return list(best(0, num_parts)[1])


FLOPS_PER_BYTE = 17
"""A V100's 15.7 TFLOP/s of fp32 over 900 GB/s. H100: 20; A100: 10."""


def find_cuts(config: Config, net: nn.Module, num_stages: int, num_images: int = 1) -> list[int]:
    """Blocks before each: config.cut, or those whose slowest stage is fastest, by block_times. Raises UserError
    for a cut out of range, and more stages than blocks."""
    blocks = blocks_of(net)
    num_blocks = len(blocks)
    if num_stages > num_blocks:
        raise UserError(f"{config.arch} has {num_blocks} blocks, too few for {num_stages} stages; use fewer ranks")
    if isinstance(config.cut, str):
        return balanced_cuts(block_times(blocks, config.image_size, num_images), num_stages)
    if num_stages != 2:
        raise UserError(f"cut {config.cut} is for two stages, and this run has {num_stages}; use --cut auto")
    if config.cut >= num_blocks:
        raise UserError(
            f"cut {config.cut} is out of range: {config.arch} has {num_blocks} blocks, which allows 1 to "
            f"{num_blocks - 1}, or auto for a balanced cut"
        )
    return [config.cut]


def stages_at(net: nn.Module, cuts: Sequence[int]) -> list[nn.Sequential]:
    """Of net's own modules."""
    blocks = blocks_of(net)
    return [nn.Sequential(*blocks[first:last]) for first, last in itertools.pairwise([0, *cuts, len(blocks)])]


def blocks_of(net: nn.Module) -> list[nn.Sequential]:
    """The first with the stem, the last with the classifier."""
    return [nn.Sequential(*modules) for modules in family_of(net).parts(net)]


def cut_column(cuts: Sequence[int]) -> int | str:
    return cuts[0] if len(cuts) == 1 else ", ".join(map(str, cuts))


def num_microbatches(config: Config, num_stages: int) -> int:
    """Raises UserError where they do not divide the batch, or are too few for the schedule."""
    microbatches = config.microbatches or num_stages * -(-4 // num_stages)
    if config.pipeline_schedule == "1f1b" and microbatches < num_stages:
        raise UserError(
            f"1f1b keeps {num_stages} stages busy, one micro-batch each, but --microbatches is {microbatches}; "
            "raise it, or use --pipeline-schedule gpipe"
        )
    if config.global_batch % microbatches:
        raise UserError(f"global_batch {config.global_batch} is not a multiple of {microbatches} microbatches")
    return microbatches


def flops_and_shapes(stages: Sequence[nn.Module], image_size: int) -> list[tuple[int, tuple[int, ...]]]:
    """Of one image: forward FLOPs in each stage, and the shape that it hands on."""
    counters = [FlopCounterMode(display=False) for _ in stages]
    shapes = _forward(stages, counters, image_size)
    return [(counter.get_total_flops(), shape) for counter, shape in zip(counters, shapes, strict=True)]


def rows_between(
    config: Config, stages: Sequence[nn.Module], num_images: int, device: torch.device
) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
    """What enters the first stage, then what leaves each: shapes of an image, and num_images flat rows without data."""
    shapes: list[tuple[int, ...]] = [(3, config.image_size, config.image_size)]
    shapes += [shape for _, shape in flops_and_shapes(stages, config.image_size)]
    # on GPUs autocast has GroupNorm in float32
    has_layer_norm = ARCHITECTURES[config.arch].normalisation == "LayerNorm"
    in_float32 = (config.norm == "group" and device.type == "cuda") or has_layer_norm
    in_bf16 = config.precision == "bf16" and not in_float32
    types = [torch.bfloat16 if in_bf16 else torch.float32] * (1 + len(stages))
    if config.precision == "bf16":
        types[0] = types[-1] = torch.bfloat16  # images and scores
    rows = (
        torch.empty(num_images, math.prod(shape), dtype=dtype, device="meta", requires_grad=True)
        for shape, dtype in zip(shapes, types, strict=True)
    )
    return shapes, [*rows]


def block_times(blocks: Sequence[nn.Module], image_size: int, num_images: int = 1) -> list[float]:
    """Relative, by a roofline in bytes: an operation counts as the longer of its computation and its reads and
    writes."""
    counters = [_Roofline() for _ in blocks]
    _forward(blocks, counters, image_size, num_images)
    return [counter.bytes for counter in counters]


class _Roofline(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if not function.is_view:
            tensors = [leaf for leaf in tree_leaves((args, made)) if isinstance(leaf, torch.Tensor)]
            count = flop_registry.get(function.overloadpacket)
            flops = count(*args, **(kwargs or {}), out_val=made) if count else 0
            self.bytes += max(sum(tensor.nbytes for tensor in tensors), flops / FLOPS_PER_BYTE)
        return made


def _forward(
    stages: Sequence[nn.Module], counters: Sequence, image_size: int, num_images: int = 1
) -> list[tuple[int, ...]]:
    """The shapes that stages hand on, each within its counter."""
    activation = torch.empty(num_images, 3, image_size, image_size, device="meta")
    shapes = []
    for stage, counter in zip(stages, counters, strict=True):
        without_data = copy.deepcopy(stage).to("meta").eval()  # BatchNorm refuses to train on one small image
        with counter, torch.no_grad():
            activation = without_data(activation)
        shapes.append(tuple(activation.shape[1:]))
    return shapes


class Staged(nn.Module):
    """Stages in turn, each on its own device, over micro-batches of `split_size` images (0: all at once).

    As kernels run after their call has returned, a micro-batch's second stage overlaps with the next one's first
    (PipelineParallelResNet50 of PyTorch's tutorial).
    """

    def __init__(self, stages: Sequence[nn.Module], devices: Sequence[torch.device], split_size: int):
        super().__init__()
        self.stages = nn.ModuleList(stage.to(device) for stage, device in zip(stages, devices, strict=True))
        self.devices, self.split_size = devices, split_size

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores on the images' device, so that one clock times both."""
        scores = []
        for activation in images.split(self.split_size or len(images)):
            for stage, device in zip(self.stages, self.devices, strict=True):
                activation = stage(activation.to(device, non_blocking=True))
            scores.append(activation)
        return torch.cat(scores).to(images.device)


def num_splits(split_size: int, num_images: int) -> int:
    """Raises UserError."""
    if split_size > num_images:
        raise UserError(
            f"split_size {split_size} is larger than the {num_images} images of a rank; lower it, or use 0 for no split"
        )
    return -(-num_images // split_size) if split_size else 1
