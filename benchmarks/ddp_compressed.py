"""DistributedDataParallel whose gradients travel as bf16, fp16 or PowerSGD's factors: a communication hook.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_compressed --config configs/smoke.yaml --comm-hook bf16
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy

NUM_UNCOMPRESSED_STEPS = 2  # ddp_compressed: the fewest that PowerSGD of torch allows; its default is 1000


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)
    if config.comm_hook == "powersgd" and rank.backend != "nccl":
        raise UserError(f"PowerSGD runs over NCCL, and on {rank.backend} it aborts; use --comm-hook bf16 or fp16")
    if config.comm_hook == "powersgd" and config.warmup_steps < NUM_UNCOMPRESSED_STEPS:
        raise UserError(
            f"PowerSGD sends the first {NUM_UNCOMPRESSED_STEPS} steps uncompressed; "
            f"use --warmup-steps {NUM_UNCOMPRESSED_STEPS} or more"
        )
    if config.comm_hook == "bf16" and torch.version.cuda is None:
        raise Unavailable("DDP takes the bf16 hook in a CUDA build of torch only; use --comm-hook fp16")
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))
    ddp.register_comm_hook(*hook_of(config))  # ddp_compressed: DDP calls it for each full bucket
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


def hook_of(config: Config) -> tuple[Any, Callable[..., Any]]:
    """(state, hook) for register_comm_hook. state: a PowerSGDState, or None for all ranks."""
    if config.comm_hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, config.powersgd_rank, start_powerSGD_iter=NUM_UNCOMPRESSED_STEPS)
        return state, powerSGD_hook.powerSGD_hook
    return None, getattr(default_hooks, f"{config.comm_hook}_compress_hook")


def layout(config: Config, num_devices: int) -> Layout:
    # ddp_compressed: the hook divides before the sum, which in fp16 rounds the smallest gradients
    exact = config.comm_hook == "bf16"
    return Layout(num_shards=num_devices, compression=config.comm_hook, exact=exact, num_gradient_copies=1)


def main() -> None:
    fit(build(load_config(description=__doc__)))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
