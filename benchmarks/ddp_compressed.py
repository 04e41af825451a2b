"""DistributedDataParallel whose gradients travel as bf16, fp16 or PowerSGD's factors: a communication hook.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_compressed --config configs/smoke.yaml --comm-hook bf16
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import ddp_options, find_rank_info, process_group_options, rank_zero_first, set_up_rank
from benchmarks.common.strategy import Layout, Strategy

NUM_UNCOMPRESSED_STEPS = 2  # ddp_compressed: the fewest that PowerSGD of torch allows; its default is 1000


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"))
    if config.comm_hook == "powersgd" and context.backend != "nccl":
        raise UserError(f"PowerSGD runs over NCCL, and on {context.backend} it aborts; use --comm-hook bf16 or fp16")
    if config.comm_hook == "powersgd" and config.warmup_steps < NUM_UNCOMPRESSED_STEPS:
        raise UserError(
            f"PowerSGD sends the first {NUM_UNCOMPRESSED_STEPS} steps uncompressed; "
            f"use --warmup-steps {NUM_UNCOMPRESSED_STEPS} or more"
        )
    if config.comm_hook == "bf16" and torch.version.cuda is None:
        raise Unavailable("DDP takes the bf16 hook in a CUDA build of torch only; use --comm-hook fp16")
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    module = build_model(config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))
    model.register_comm_hook(*hook_of(config))  # ddp_compressed: DDP calls it for each full bucket
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


def hook_of(config: Config) -> tuple[Any, Callable[..., Any]]:
    """(state, hook) for register_comm_hook. state: the process group (None: all ranks), or a PowerSGDState."""
    if config.comm_hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, config.powersgd_rank, start_powerSGD_iter=NUM_UNCOMPRESSED_STEPS)
        return state, powerSGD_hook.powerSGD_hook
    return None, getattr(default_hooks, f"{config.comm_hook}_compress_hook")


def layout(config: Config, num_devices: int) -> Layout:
    # ddp_compressed: the hook divides by world_size before the sum. In fp16 that rounds the smallest gradients
    exact = config.comm_hook == "bf16"
    return Layout(num_shards=num_devices, compression=config.comm_hook, exact=exact, num_gradient_copies=1)


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
