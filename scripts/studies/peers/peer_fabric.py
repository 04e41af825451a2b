"""A peer: the plain loop by Lightning Fabric (pip install lightning). Nothing of the suite is in it.

`next()` takes one step; scripts/studies/peers/measure.py times it.
"""

import itertools
import os
from collections.abc import Iterator

import torch
import torchvision
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from scripts.studies.peers.loop_settings import LoopSettings
from scripts.studies.peers.peer_example import files


def train(settings: LoopSettings) -> Iterator[None]:
    """Train for ever in the process group that is there already; yields after each step."""
    fabric = Fabric(accelerator="auto", strategy=DDPStrategy(), devices=int(os.environ["LOCAL_WORLD_SIZE"]))
    fabric.launch()
    dataset = files(settings.folder, settings.image_size)
    model = getattr(torchvision.models, settings.arch)(num_classes=len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay)
    model, optimizer = fabric.setup(model, optimizer)
    loader = DataLoader(
        dataset,
        settings.global_batch // fabric.world_size,
        shuffle=True,  # Fabric puts a DistributedSampler in its place
        num_workers=settings.workers,
        pin_memory=fabric.device.type == "cuda",
        drop_last=True,
    )
    loader = fabric.setup_dataloaders(loader)
    model.train()
    for epoch in itertools.count():
        loader.sampler.set_epoch(epoch)
        for images, target in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), target)
            fabric.backward(loss)
            optimizer.step()
            yield
