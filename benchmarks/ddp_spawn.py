"""DistributedDataParallel without a launcher: torch.multiprocessing.spawn starts one process per GPU.

NPROC=2 python -m benchmarks.ddp_spawn --config configs/smoke.yaml
"""

import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common import machine
from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import (
    RankInfo,
    ddp_options,
    find_rank_info,
    process_group_options,
    rank_zero_first,
    set_up_rank,
)
from benchmarks.common.strategy import Layout, Strategy, StrategyFacts

FACTS = StrategyFacts(one_node=True)


def spawn_ranks(config: Config) -> None:
    num_ranks = machine.num_ranks()
    with tempfile.TemporaryDirectory() as folder:
        rendezvous_file = f"{folder}/rendezvous"  # ddp_spawn: a fresh file, where a fixed port would collide
        arguments = (num_ranks, rendezvous_file, config)
        spawn(run_rank, arguments, nprocs=num_ranks)  # ddp_spawn: calls run_rank(rank, *arguments)


def run_rank(rank: int, num_ranks: int, rendezvous_file: str, config: Config) -> None:
    rank_info = RankInfo(rank, rank, num_ranks, launcher="spawn", rendezvous_file=rendezvous_file)
    run_and_exit(lambda: fit(build(config, rank_info)), rank)


def build(config: Config, rank_info: RankInfo | None = None) -> Strategy:
    """Without `rank_info`, as in studies, the rank comes from torchrun's variables."""
    config, context = set_up_rank(config, rank_info or find_rank_info("torchrun"))
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    module = build_model(config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))
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
        layout=layout(config, context.world_size),
        communication=ddp_communication(model),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
        shut_down=dist.destroy_process_group,
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


if __name__ == "__main__":
    run_and_exit(lambda: spawn_ranks(load_config(description=__doc__)))
