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
from benchmarks.common.rank import RankInfo, set_up_rank
from benchmarks.common.strategy import Layout, Strategy, StrategyFacts

FACTS = StrategyFacts(one_node=True)


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, RankInfo())
    loaders = build_loaders(config, context)
    model = build_model(config, len(loaders.train.classes), context.device)
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
        context,
        model=model,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, 1),
        columns={"parallel": None},  # single: the baseline has nothing to divide
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout()


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
