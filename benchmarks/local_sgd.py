"""Local SGD: ranks train alone, and average their weights every few steps. Groups of ranks can train as in DDP.

torchrun --standalone --nproc-per-node 4 -m benchmarks.local_sgd --config configs/smoke.yaml --local-period 8
"""

import copy
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.exchange import fill, flatten, sync_buffers
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy, all_reduce_sum


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    if rank.world_size % config.local_group:
        raise UserError(f"local_group {config.local_group} does not divide {rank.world_size} ranks; change one")
    config = prepare(config, rank)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    # local_sgd: groups of one rank, by default, exchange no gradients. A new group has a timeout of its own
    group, _ = dist.new_subgroups(config.local_group, timeout=timeout)
    ddp = DistributedDataParallel(model, rank.device_ids, process_group=group)
    average = copy.deepcopy(model).eval()  # local_sgd: evaluated and saved in place of model
    num_steps = 0
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal num_steps
        optimizer.zero_grad()
        output = ddp(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        num_steps += 1
        if num_steps % config.local_period == 0:  # local_sgd: weights; momentum stays each rank's own
            average_into(model)
        return loss.detach(), output.detach()

    def average_into(target: nn.Module) -> None:
        flat = flatten([*model.parameters()], rank.device)
        fill([*target.parameters()], all_reduce_sum(flat) / rank.world_size)

    def sync_state() -> None:  # local_sgd: training goes on from each rank's own weights
        average_into(average)
        fill([*average.buffers()], flatten([*model.buffers()], rank.device))
        sync_buffers(average, rank, all_reduce_sum)

    def differing_tensors() -> list[torch.Tensor]:  # local_sgd: what ranks hold differently
        tensors = [*model.parameters(), *model.buffers()]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return tensors

    def save_state() -> dict[str, Any]:
        flat = flatten(differing_tensors(), rank.device)
        ranks = [torch.empty_like(flat) for _ in range(rank.world_size)] if rank.rank == 0 else None
        dist.gather(flat, ranks)
        return {
            "model": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "ranks": ranks,
            "steps": num_steps,
        }

    def load_state(saved: dict[str, Any]) -> None:
        nonlocal num_steps
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        ranks = saved.get("ranks", [])
        if len(ranks) == rank.world_size:  # local_sgd: inside a period, each rank its own
            fill(differing_tensors(), ranks[rank.rank].to(rank.device))
        num_steps = saved.get("steps", 0)

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
        predict=average,
        waits_within_phases=True,
        sync_state=sync_state,
        save_state=save_state,
        load_state=load_state,
    )


def layout(config: Config, num_devices: int) -> Layout:
    num_copies = 2  # DDP's buckets, and the average
    return Layout(num_devices, period=config.local_period, group=config.local_group, num_gradient_copies=num_copies)


def main() -> None:
    fit(build(load_config(description=__doc__)))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
