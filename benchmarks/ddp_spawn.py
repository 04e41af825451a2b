"""DistributedDataParallel without a launcher: torch.multiprocessing.spawn starts one process per GPU.

NPROC=2 python -m benchmarks.ddp_spawn --config configs/smoke.yaml
"""

import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import num_ranks
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare, rank_devices
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"one_node": True}


def spawn_ranks() -> None:
    config, world_size = load_config(description=__doc__), num_ranks()
    with tempfile.TemporaryDirectory() as folder:
        init_method = f"file://{folder}/rendezvous"  # ddp_spawn: a fresh file, where a fixed port would collide
        spawn(run_rank, (world_size, init_method, config), nprocs=world_size)  # ddp_spawn: run_rank(0, ...), (1, ...)


def run_rank(number: int, world_size: int, init_method: str, config: Config) -> None:
    def main() -> None:
        meeting = f"{init_method}?rank={number}&world_size={world_size}"
        fit(build(config, Rank(number, number, world_size, world_size, rank_devices(number), meeting)))
        dist.destroy_process_group()

    run_and_exit(main, number)


def build(config: Config, rank: Rank | None = None) -> Strategy:
    """Without `rank`, as in studies, torchrun has started the ranks."""
    rank = rank or Rank.from_env("torchrun")
    config = prepare(config, rank)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
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
        without_exchange=lambda: ddp_without_exchange(ddp),
        columns={"bucket_cap_mb": ddp.bucket_bytes_cap / 2**20},
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


if __name__ == "__main__":
    run_and_exit(spawn_ranks)
