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
from benchmarks.common.rank import RankInfo, set_up_rank
from benchmarks.common.strategy import Layout, Strategy, StrategyFacts

FACTS = StrategyFacts(one_node=True)


def build(config: Config) -> Strategy:
    num_gpus = usable_gpus()
    config, context = set_up_rank(config, RankInfo(), devices_per_rank=max(1, num_gpus))
    # dataparallel: of several GPUs, each has a new thread in each step. cuDNN keeps its choices by thread, so that it
    # would search again in every step
    if num_gpus >= 2:
        torch.backends.cudnn.benchmark = False
    if num_gpus and config.global_batch % num_gpus:
        raise UserError(f"global_batch {config.global_batch} is not a multiple of {num_gpus} GPUs; change one of them")
    # dataparallel: one process decodes for all GPUs, so it gets the loader workers that as many ranks would have
    loaders = build_loaders(config, context, devices_per_rank=max(1, num_gpus))
    module = build_model(config, len(loaders.train.classes), context.device)
    model = nn.DataParallel(module)  # dataparallel: copies the weights to all GPUs in every forward pass
    optimizer = build_optimizer(config, module)
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
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        predict=model,  # dataparallel: scattered, too: one GPU may have no room for a whole batch
        layout=layout(config, max(1, num_gpus)),
        # dataparallel: with fewer than two GPUs the wrapper passes through, and the row says so
        devices=[torch.device("cuda", number) for number in range(num_gpus)],
        columns={"cudnn_benchmark": False} if num_gpus >= 2 else {},
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1, one_process_loads=True)


if __name__ == "__main__":
    # SyncBatchNorm needs a process group; under DataParallel it would quietly be BatchNorm.
    run_and_exit(lambda: fit(build(load_config(description=__doc__, norm=("batch", "group"), compile=(False,)))))
