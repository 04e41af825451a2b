"""A DDP loop with nothing of the suite in it, which `scripts.studies.overhead` holds benchmarks.ddp against.

It reads, augments and trains as public scripts do; `next()` takes one step.
"""

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist
import torchvision
from PIL import Image
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2


class LoopSettings(NamedTuple):
    """What the loop trains."""

    folder: str
    """Folder with a folder of images for each class."""
    num_images: int
    """Of an epoch, at least: a small folder is repeated, as the suite does it."""
    arch: str
    image_size: int
    global_batch: int
    workers: int
    """Loader processes of a rank."""
    lr: float
    momentum: float
    weight_decay: float


def read_rgb(path: str) -> Image.Image:
    """torchvision's own reader of a file, but of JPEGs and PNGs alone: for an EPS Pillow starts Ghostscript."""
    with open(path, "rb") as file:
        return Image.open(file, formats=("JPEG", "PNG")).convert("RGB")


def train(device: torch.device, settings: LoopSettings) -> Iterator[None]:
    """Train for ever in the process group that is there already; yields after each step."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(settings.image_size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
        ]
    )
    # On the device, from uint8: the copy is of a quarter of the bytes, as the suite's is.
    normalize = v2.Compose(
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    )
    folder = ImageFolder(settings.folder, transform, loader=read_rgb)
    dataset: ConcatDataset[tuple] = ConcatDataset([folder] * math.ceil(settings.num_images / len(folder)))
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    loader = DataLoader(
        dataset,
        settings.global_batch // dist.get_world_size(),
        sampler=sampler,
        num_workers=settings.workers,
        drop_last=True,
        pin_memory=device.type == "cuda",
        persistent_workers=settings.workers > 0,
    )
    net = getattr(torchvision.models, settings.arch)(num_classes=len(folder.classes)).to(device)
    model = DistributedDataParallel(net, [device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(net.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for images, target in loader:
            images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = cross_entropy(model(normalize(images)), target)
            loss.backward()
            optimizer.step()
            yield
