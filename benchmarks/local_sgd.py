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

from benchmarks.common.communication import Communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import (
    all_reduce_sum,
    fill,
    find_rank_info,
    flatten,
    process_group_options,
    rank_zero_first,
    set_up_rank,
    sync_buffers,
)
from benchmarks.common.strategy import Layout, Strategy, TrainingState, load_whole_state


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"))
    if context.world_size % config.local_group:
        raise UserError(f"local_group {config.local_group} does not divide {context.world_size} ranks; change one")
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    module = build_model(config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    # local_sgd: by default a group has one rank, and exchanges no gradients. A new group needs a timeout of its own
    group, _ = dist.new_subgroups(config.local_group, timeout=timedelta(seconds=config.timeout_s))
    model = DistributedDataParallel(module, device_ids, process_group=group)
    average = copy.deepcopy(module).eval()  # local_sgd: evaluated and saved in place of module
    num_steps = 0
    optimizer = build_optimizer(config, module)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal num_steps
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        num_steps += 1
        if num_steps % config.local_period == 0:  # local_sgd: weights; momentum stays each rank's own
            average_into(module)
        return loss.detach(), output.detach()

    def average_into(model: nn.Module) -> None:
        flat = flatten([*module.parameters()], context.device)
        fill([*model.parameters()], all_reduce_sum(flat) / context.world_size)

    def sync_state() -> None:  # local_sgd: training goes on from each rank's own weights
        average_into(average)
        fill([*average.buffers()], flatten([*module.buffers()], context.device))
        sync_buffers(average, context, all_reduce_sum)

    def differing_tensors() -> list[torch.Tensor]:  # local_sgd: what ranks hold differently
        tensors = [*module.parameters(), *module.buffers()]
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return tensors

    def save() -> dict[str, Any]:
        flat = flatten(differing_tensors(), context.device)
        ranks = [torch.empty_like(flat) for _ in range(context.world_size)] if context.rank == 0 else None
        dist.gather(flat, ranks)
        return {
            "model": average.state_dict(),
            "optimizer": optimizer.state_dict(),
            "ranks": ranks,
            "steps": num_steps,
        }

    def load(saved: dict[str, Any]) -> None:
        nonlocal num_steps
        load_whole_state(module, optimizer, saved)
        ranks = saved.get("ranks", [])
        if len(ranks) == context.world_size:  # local_sgd: inside a period, each rank its own
            fill(differing_tensors(), ranks[context.rank].to(context.device))
        num_steps = saved.get("steps", 0)

    return Strategy(
        config,
        context,
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, context.world_size),
        # local_sgd: a step's communication is one average, which comes once a period and holds the wait for other ranks
        communication=Communication(all_reduce_sum, lambda: average_into(average), waits_within_phases=True),
        state=TrainingState(sync_state, save, load),
        predict=average,
        shut_down=dist.destroy_process_group,
    )


def layout(config: Config, num_devices: int) -> Layout:
    num_copies = 2  # DDP's buckets, and the average
    return Layout(num_devices, period=config.local_period, group=config.local_group, num_gradient_copies=num_copies)


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
