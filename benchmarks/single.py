"""One process on one device: the baseline that every other strategy is measured against.

python -m benchmarks.single --config configs/smoke.yaml
"""

import torch
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"one_node": True}


def build(config: Config) -> Strategy:
    rank = Rank.alone()
    config = prepare(config, rank)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
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
        layout(config, rank.world_size),
        columns={"parallel": None},  # single: the baseline has nothing to divide
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout()


def main() -> None:
    fit(build(load_config(description=__doc__)))


if __name__ == "__main__":
    run_and_exit(main)
