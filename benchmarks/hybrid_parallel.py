"""Hybrid: each rank's model lies over two GPUs of its own, and DistributedDataParallel averages between the ranks.

torchrun --standalone --nproc-per-node 2 -m benchmarks.hybrid_parallel --config configs/smoke.yaml
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import usable_gpus
from benchmarks.common.model import autocast_forward, build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.stages import Staged, cut_column, find_cuts, num_splits, stages_at
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    if usable_gpus() == 1:
        raise Unavailable("hybrid_parallel needs two GPUs a rank, and there is one; model_parallel runs on one")
    rank = Rank.from_env("torchrun", devices_per_rank=2)  # hybrid: local rank 1 has GPUs 2 and 3
    config = prepare(config, rank)
    devices = [rank.devices[0], rank.devices[-1]]
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    # hybrid: no device_id: a group bound to one GPU refuses the gradients of the other
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout)
    train, val = build_loaders(config, rank)  # hybrid: one shard for every two GPUs
    model = build_model(config, train.num_classes).to(rank.device)
    cuts = find_cuts(config, model, 2, config.split_size or config.global_batch // rank.world_size)
    stages = stages_at(model, cuts)
    staged = autocast_forward(config, Staged(stages, devices, config.split_size))
    ddp = DistributedDataParallel(staged, **ddp_options(config))  # hybrid: no device_ids
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def sync_state() -> None:  # hybrid: rank 0's BatchNorm statistics, which are on two devices
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)

    return Strategy(
        config,
        rank,
        model,
        optimizer,
        train,
        val,
        criterion,
        step,
        layout(config, 2 * rank.world_size),
        predict=staged,
        without_exchange=lambda: ddp_without_exchange(ddp),
        sync_state=sync_state,
        columns={"cut": cut_column(cuts), "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20},
    )


def layout(config: Config, num_devices: int) -> Layout:
    num_shards = max(1, num_devices // 2)
    num_microbatches = num_splits(config.split_size, config.global_batch // num_shards)
    return Layout(
        num_shards=num_shards,
        num_stages=2,
        num_microbatches=num_microbatches,
        split_size=config.split_size,
        num_gradient_copies=1,
    )


def main() -> None:
    fit(build(load_config(description=__doc__, compile=(False,))))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
