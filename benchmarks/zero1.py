"""DistributedDataParallel and ZeRO's first stage: each rank keeps the optimizer's state of its share only.

torchrun --standalone --nproc-per-node 2 -m benchmarks.zero1 --config configs/smoke.yaml
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, optimizer_of
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))
    optimizer_class, options = optimizer_of(config)
    # zero1: updates its share, and sends it as one tensor
    in_buckets = config.memory_format == "contiguous"
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class, parameters_as_bucket_view=in_buckets, **options
    )
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def save_state() -> dict[str, Any]:
        optimizer.consolidate_state_dict(to=0)  # zero1: every rank sends its share to rank 0
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict() if rank.reports else {}}

    def load_state(saved: dict[str, Any]) -> None:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if not config.fused:
            return
        # zero1: load_state_dict moves the number of steps to the CPU
        for parameter, state in optimizer.optim.state.items():
            state |= {name: value.to(parameter.device) for name, value in state.items() if value.dim() == 0}

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
        save_state=save_state,
        load_state=load_state,
        columns={"bucket_cap_mb": ddp.bucket_bytes_cap / 2**20},
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


def main() -> None:
    fit(build(load_config(description=__doc__)))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
