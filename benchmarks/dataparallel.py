"""nn.DataParallel: one process drives every GPU; it scatters each batch and gathers the outputs on GPU 0.

python -m benchmarks.dataparallel --config configs/smoke.yaml
"""

import torch
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import usable_gpus
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"one_node": True}


def build(config: Config) -> Strategy:
    rank = Rank.alone(usable_gpus())  # dataparallel: one process for all GPUs
    num_devices = len(rank.devices)
    config = prepare(config, rank)
    if num_devices > 1:
        # dataparallel: each GPU has a new thread in each step, in which cuDNN would search again
        torch.backends.cudnn.benchmark = False
    if config.global_batch % num_devices:
        raise UserError(f"global_batch {config.global_batch} is not a multiple of {num_devices} GPUs; change one")
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    parallel = nn.DataParallel(model)  # dataparallel: copies the weights to all GPUs in every forward pass
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = parallel(images)
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
        layout(config, num_devices),
        predict=parallel,  # dataparallel: one GPU may have no room for a whole batch
        columns={"cudnn_benchmark": False} if num_devices > 1 else {},
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1, one_process_loads=True)


def main() -> None:
    # norm: under DataParallel SyncBatchNorm would quietly be BatchNorm
    fit(build(load_config(description=__doc__, norm=("batch", "group"), compile=(False,))))


if __name__ == "__main__":
    run_and_exit(main)
