"""One rank of a strategy of the suite, which takes an example's steps.

python train_as_suite.py STRATEGY DATA CHECKPOINT RESULT
"""

import importlib
import sys

import torch
from fixed_batches import IMAGE_SIZE, FixedLoader
from torch.utils.data import DistributedSampler

from benchmarks.common.checkpoint import load_state, save_state, sync_state
from benchmarks.common.config import Config
from benchmarks.common.model import learning_rate

GLOBAL_BATCH, EPOCHS = 8, 3


def main(name: str, data: str, checkpoint: str, result: str) -> None:
    config = Config(data=data, arch="resnet18", image_size=IMAGE_SIZE, workers=0, timeout_s=180)
    schedule = {"global_batch": GLOBAL_BATCH, "epochs": EPOCHS, "lr_schedule": "cosine"}
    strategy = importlib.import_module(f"benchmarks.{name}").build(Config(**vars(config) | schedule))
    rank, world_size, num_images = strategy.rank.rank, strategy.rank.world_size, strategy.train.sampler.num_images
    saved = torch.load(checkpoint, weights_only=True)
    load_state(strategy, saved)
    if name == "pipeline_parallel" or world_size == 1:
        sampler, loader = None, FixedLoader(range(num_images), GLOBAL_BATCH, shuffle=True, drop_last=True)
    else:
        sampler = DistributedSampler(range(num_images), world_size, rank, drop_last=True)
        loader = FixedLoader(range(num_images), GLOBAL_BATCH // world_size, sampler=sampler, drop_last=True)
    for epoch in range(saved["epoch"], EPOCHS):
        if sampler:
            sampler.set_epoch(epoch)
        for n, (images, target) in enumerate(loader):
            for group in strategy.optimizer.param_groups:
                group["lr"] = learning_rate(strategy.config, epoch + n / len(loader))
            if name == "pipeline_parallel" and rank:  # rank 0 alone reads
                images, target = torch.empty(0), torch.zeros_like(target)
            strategy.step(images, target)
    sync_state(strategy)
    state = save_state(strategy)
    if rank == 0:
        torch.save(state, result)


if __name__ == "__main__":
    main(*sys.argv[1:])
