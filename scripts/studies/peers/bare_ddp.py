"""A DDP loop with nothing of the suite in it, which `scripts.studies.peers.overhead` holds benchmarks.ddp against.

It reads, augments and trains as public scripts do; `next()` takes one step.
"""

import itertools
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from scripts.studies.peers.loop_settings import LoopSettings, read_rgb


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
    dataset = ImageFolder(settings.folder, transform, loader=read_rgb)
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
    net = getattr(torchvision.models, settings.arch)(num_classes=len(dataset.classes)).to(device)
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
