"""DistributedDataParallel under Slurm: srun starts one task a GPU on every node, and each task is one rank.

srun --nodes 2 --ntasks-per-node 2 --kill-on-bad-exit=1 python -m benchmarks.slurm --config configs/smoke.yaml
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import (
    RankContext,
    SlurmStep,
    ddp_options,
    file_store,
    find_rank_info,
    find_slurm_step,
    process_group_options,
    rank_zero_first,
    set_up_rank,
)
from benchmarks.common.strategy import Layout, Strategy


def rendezvous_options(config: Config, context: RankContext, slurm_step: SlurmStep) -> dict[str, Any]:
    """Arguments by which init_process_group connects the ranks: a file named after this job step, or the first node's
    address."""
    if config.rendezvous == "file":
        path = os.path.abspath(os.path.join(slurm_step.folder, f"rendezvous-{slurm_step.name}"))
        return {"store": file_store(path, config, context)}
    return {"init_method": f"tcp://{slurm_step.address}:{slurm_step.port}"}


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("srun"))  # slurm: by SLURM_PROCID, SLURM_LOCALID and others
    dist.init_process_group(
        **rendezvous_options(config, context, find_slurm_step()),
        rank=context.rank,
        world_size=context.world_size,
        **process_group_options(config, context),
    )
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
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
