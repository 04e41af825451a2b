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

from scripts.studies.peers.loop_settings import LoopSettings
from scripts.studies.peers.peer_example import files


def train(settings: LoopSettings) -> Iterator[None]:
    """Train for ever in the process group that is there already; yields after each step."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    dataset = files(settings.folder, settings.image_size)
    model = getattr(torchvision.models, settings.arch)(num_classes=len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    loader = DataLoader(
        dataset,
        settings.global_batch // accelerator.num_processes,
        shuffle=True,  # Accelerate deals the batches to the ranks
        num_workers=settings.workers,
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
