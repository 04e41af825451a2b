"""Model parallel in one process: half of the layers on each of two GPUs, the batch whole or in micro-batches.

python -m benchmarks.model_parallel --config configs/smoke.yaml --split-size 8
"""

import torch
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import autocast_forward, build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.stages import Staged, cut_column, find_cuts, num_splits, stages_at
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"one_node": True}


def build(config: Config) -> Strategy:
    rank = Rank.alone(2)
    config = prepare(config, rank)
    # model_parallel: without a second GPU both halves share one device
    devices = [rank.devices[0], rank.devices[-1]]
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    cuts = find_cuts(config, model, 2, config.split_size or config.global_batch)
    stages = stages_at(model, cuts)  # model_parallel: the model's own layers, in two halves
    staged = Staged(stages, devices, config.split_size)  # model_parallel: each half moves to its device
    staged = autocast_forward(config, staged)
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = staged(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    return Strategy(
        config,
        rank,
        model,
        optimizer,
        train,
        val,
        criterion,
        step,
        layout(config, len(rank.devices)),
        predict=staged,
        columns={"cut": cut_column(cuts)},
    )


def layout(config: Config, num_devices: int) -> Layout:
    num_microbatches = num_splits(config.split_size, config.global_batch)
    return Layout(
        num_shards=1,
        num_stages=2,
        num_microbatches=num_microbatches,
        split_size=config.split_size,
        num_stage_devices=min(2, num_devices),
    )


def main() -> None:
    # norm: SyncBatchNorm needs a process group
    fit(build(load_config(description=__doc__, norm=("batch", "group"), compile=(False,))))


if __name__ == "__main__":
    run_and_exit(main)
