"""A peer: training in the structure of PyTorch's own ImageNet example, written anew. Nothing of the suite is in it.

Pillow, ToTensor and Normalize in the DataLoader, DistributedSampler, DDP, and meters that read their numbers by
`.item()` in every step (github.com/pytorch/examples, imagenet/main.py). `next()` takes one step;
scripts/studies/peers/measure.py times it.
"""

import itertools
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

from scripts.studies.peers.loop_settings import LoopSettings, read_rgb


def files(folder: str, image_size: int) -> ImageFolder:
    """The example's training set: images of a folder, cropped at random, flipped, as normalised float tensors."""
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop, flip = transforms.RandomResizedCrop(image_size), transforms.RandomHorizontalFlip()
    return ImageFolder(folder, transforms.Compose([crop, flip, transforms.ToTensor(), normalize]), loader=read_rgb)


class Meter:
    """The mean of some values, weighted by n."""

    def __init__(self) -> None:
        self.total = 0.0
        self.count = 0

    def update(self, value: float, n: int) -> None:
        self.total, self.count = self.total + value * n, self.count + n


def accuracy(output: torch.Tensor, target: torch.Tensor, k: int) -> float:
    """Top-k accuracy of a batch, per cent, as a number on the host."""
    found = output.topk(min(k, output.shape[1]), dim=1).indices.eq(target.view(-1, 1)).any(dim=1)
    return 100 * found.float().mean().item()


def train(settings: LoopSettings) -> Iterator[None]:
    """Train for ever in the process group that is there already; yields after each step."""
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    dataset = files(settings.folder, settings.image_size)
    model = getattr(torchvision.models, settings.arch)(num_classes=len(dataset.classes)).to(device)
    model = DistributedDataParallel(model, [local_rank] if on_gpu else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    sampler: DistributedSampler[int] = DistributedSampler(dataset)
    batch = settings.global_batch // dist.get_world_size()
    workers = settings.workers
    loader = DataLoader(dataset, batch, sampler=sampler, num_workers=workers, pin_memory=on_gpu, drop_last=True)
    losses, top1, top5 = Meter(), Meter(), Meter()
    model.train()
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for images, target in loader:
            images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
            output = model(images)
            loss = criterion(output, target)
            losses.update(loss.item(), len(images))
            top1.update(accuracy(output, target, 1), len(images))
            top5.update(accuracy(output, target, 5), len(images))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield
