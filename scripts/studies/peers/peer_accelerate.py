"""A peer: the plain loop by Hugging Face Accelerate (pip install accelerate). Nothing of the suite is in it.

`next()` takes one step; scripts/studies/peers/measure.py times it.
"""

import itertools
from collections.abc import Iterator

import torch
import torchvision
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from scripts.studies.peers.peer_example import files


def train(
    folder: str,
    arch: str,
    image_size: int,
    global_batch: int,
    workers: int,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> Iterator[None]:
    """Train for ever in the process group that is there already; yields after each step."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    dataset = files(folder, image_size)
    model = getattr(torchvision.models, arch)(num_classes=len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=momentum, weight_decay=weight_decay)
    loader = DataLoader(
        dataset,
        global_batch // accelerator.num_processes,
        shuffle=True,  # Accelerate deals the batches to the ranks
        num_workers=workers,
        pin_memory=accelerator.device.type == "cuda",
        drop_last=True,
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        for images, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), target)
            accelerator.backward(loss)
            optimizer.step()
            yield
