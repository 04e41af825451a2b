"""DistributedDataParallel by torchrun: one process per GPU, gradients averaged while the backward pass runs.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp --config configs/smoke.yaml
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")  # ddp: RANK, LOCAL_RANK, WORLD_SIZE; its GPU is number LOCAL_RANK
    config = prepare(config, rank)  # ddp: threads, and one seed for all ranks
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)  # ddp: else every rank would take memory of GPU 0, too
    timeout = timedelta(seconds=config.timeout_s)
    # ddp: blocks until all ranks are here; ddp_backend: gloo or nccl
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)  # ddp: this rank's shard of each global batch
    model = build_model(config, train.num_classes).to(rank.device)
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))  # ddp: all get rank 0's weights
    optimizer = build_optimizer(config, model)  # ddp: fit sets its learning rate
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
        loss = criterion(output, target)
        loss.backward()  # ddp: averages gradients over ranks meanwhile
        optimizer.step()
        return loss.detach(), output.detach()  # ddp: of this rank's shard; fit sums over ranks

    return Strategy(
        config,
        rank,
        model,  # ddp: not its wrapper, so that it is saved under torchvision's names
        optimizer,
        train,
        val,
        criterion,
        step,
        layout(config, rank.world_size),
        without_exchange=lambda: ddp_without_exchange(ddp),  # ddp: to time the exchange of gradients
        columns={"bucket_cap_mb": ddp.bucket_bytes_cap / 2**20},
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


def main() -> None:
    fit(build(load_config(description=__doc__)))
    dist.destroy_process_group()  # ddp: all ranks leave the group


if __name__ == "__main__":
    run_and_exit(main)
