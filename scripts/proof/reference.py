"""The training that every strategy has to reproduce: one process that takes the shards one after the other.

    python -m scripts.proof.verify        # compares every strategy with it

It deals the images, cuts the shards and averages the gradients itself, so that a fault of the code under test is
not repeated here. Only the initial weights and the learning rate are the suite's own.
"""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import v2
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.model import build_model, learning_rate

IMAGENET_MEAN_AND_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as torchvision documents for its models


@dataclasses.dataclass(frozen=True)
class Shape:
    """What of a strategy changes the arithmetic of its update.

    num_shards: equal parts of a global batch whose gradients are averaged; BatchNorm sees one at a time.
    num_microbatches: equal parts of a shard that pass one after the other; BatchNorm sees one of these at a time.
    autocast: the type that torch.autocast computes in, or None.
    """

    num_shards: int = 1
    num_microbatches: int = 1
    autocast: torch.dtype | None = None


def train_reference(config: Config, shape: Shape, device: torch.device, noise: float = 0.0) -> dict[str, torch.Tensor]:
    """The state_dict, on the CPU, after config.epochs x config.steps optimizer steps in this process.

    Running statistics are those of shard 0, as on rank 0. noise: add to every element of every averaged gradient
    an error, uniform up to this fraction of the tensor's largest element. Uses torch's current number of threads.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config.precision == "tf32"
    images = labelled_images(Path(config.data) / "train")
    net = build_model(config, num_classes(images), device).train()
    optimizer = torch.optim.SGD(
        net.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    scaler = torch.amp.GradScaler(device.type, enabled=shape.autocast == torch.float16)
    noise_source = torch.Generator(device).manual_seed(1)
    bar = tqdm(total=config.epochs * config.steps, desc="reference", unit="step", disable=None, leave=False)
    with bar:
        for epoch in range(config.epochs):
            for step, batch in enumerate(global_batches(config, len(images), epoch)):
                pixels, target = decode(config, [images[index] for index in batch], device)
                for group in optimizer.param_groups:
                    group["lr"] = learning_rate(config, epoch + step / config.steps)
                average_gradients(net, pixels, target, shape, scaler)
                for parameter in net.parameters() if noise else ():
                    error = torch.rand(parameter.shape, generator=noise_source, device=device) * 2 - 1
                    parameter.grad += error * noise * parameter.grad.abs().max()
                scaler.step(optimizer)
                scaler.update()
                bar.update()
    return {name: tensor.detach().cpu() for name, tensor in net.state_dict().items()}


def average_gradients(net: nn.Module, pixels, target, shape: Shape, scaler: torch.amp.GradScaler) -> None:
    """Leave in each parameter's .grad the mean of the shards' gradients.

    The gradients are averaged after the backward passes, each divided before they are added, as DDP does it: for
    two shards that is the same to the last bit as adding first, since halving is exact.
    """
    averages = [torch.zeros_like(parameter) for parameter in net.parameters()]
    for shard in range(shape.num_shards):
        statistics = [buffer.clone() for buffer in net.buffers()]
        net.zero_grad()
        parts = zip(*(part(tensor, shard, shape) for tensor in (pixels, target)), strict=True)
        for part_pixels, part_target in parts:
            with torch.autocast(pixels.device.type, shape.autocast, enabled=shape.autocast is not None):
                loss = cross_entropy(net(part_pixels), part_target)
            scaler.scale(loss).backward()
        for average, parameter in zip(averages, net.parameters(), strict=True):
            average += parameter.grad / (shape.num_shards * shape.num_microbatches)
        if shard > 0:
            for buffer, of_shard_0 in zip(net.buffers(), statistics, strict=True):
                buffer.copy_(of_shard_0)
    for average, parameter in zip(averages, net.parameters(), strict=True):
        parameter.grad = average


def part(tensor: torch.Tensor, shard: int, shape: Shape) -> tuple[torch.Tensor, ...]:
    """The micro-batches of one shard of a global batch, along the first dimension."""
    return tensor.tensor_split(shape.num_shards)[shard].tensor_split(shape.num_microbatches)


def labelled_images(folder: Path) -> list[tuple[Path, int]]:
    """(path, class number) of every image, classes and files in the order of their names."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [
        (Path(root, name), number)
        for number, of_class in enumerate(classes)
        for root, _, names in sorted(os.walk(of_class, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(IMG_EXTENSIONS)
    ]


def num_classes(images: list[tuple[Path, int]]) -> int:
    return 1 + max(number for _, number in images)


def global_batches(config: Config, num_images: int, epoch: int) -> Iterator[list[int]]:
    """The image indices of each global batch of an epoch: shuffled laps over all images, dealt in order.

    The generator's seed is the one thing that has to be as in benchmarks/common/data.py.
    """
    wanted = config.steps * config.global_batch
    deal, order = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch), []
    while len(order) < wanted:
        order += torch.randperm(num_images, generator=deal).tolist()
    for first in range(0, wanted, config.global_batch):
        yield order[first : first + config.global_batch]


def decode(config: Config, images: list[tuple[Path, int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre crops, float32 (N, 3, image_size, image_size), normalised, and int64 targets (N,)."""
    size = config.image_size
    crop = v2.Compose([v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size), v2.PILToTensor()])
    crops = []
    for path, _ in images:
        with Image.open(path) as image:
            crops.append(crop(image.convert("RGB")))
    mean, std = (torch.tensor(values, device=device).mul(255).view(1, 3, 1, 1) for values in IMAGENET_MEAN_AND_STD)
    layout = torch.channels_last if config.memory_format == "channels_last" else torch.contiguous_format
    pixels = torch.stack(crops).to(device).float().sub(mean).div(std).contiguous(memory_format=layout)
    return pixels, torch.tensor([target for _, target in images], device=device)
