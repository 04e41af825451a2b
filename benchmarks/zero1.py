"""DistributedDataParallel and ZeRO's first stage: each rank keeps the optimizer's state of its share only.

torchrun --standalone --nproc-per-node 2 -m benchmarks.zero1 --config configs/smoke.yaml
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, optimizer_of
from benchmarks.common.rank import ddp_options, find_rank_info, process_group_options, rank_zero_first, set_up_rank
from benchmarks.common.strategy import Layout, Strategy, TrainingState, load_whole_state


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"))
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    module = build_model(config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))
    optimizer_class, options = optimizer_of(config)
    # zero1: updates its share, and sends it as one tensor where weights may lie in one
    in_buckets = config.memory_format == "contiguous"
    optimizer = ZeroRedundancyOptimizer(
        module.parameters(), optimizer_class, parameters_as_bucket_view=in_buckets, **options
    )
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def save() -> dict[str, Any]:
        optimizer.consolidate_state_dict(to=0)  # zero1: every rank sends its share to rank 0, which writes the whole
        return {"model": module.state_dict(), "optimizer": optimizer.state_dict() if context.rank == 0 else {}}

    def load(saved: dict[str, Any]) -> None:
        load_whole_state(module, optimizer, saved)
        if not config.fused:
            return
        # zero1: load_state_dict moves the number of steps to the CPU; a fused update needs it beside the weights
        for parameter, state in optimizer.optim.state.items():
            state |= {name: value.to(parameter.device) for name, value in state.items() if value.dim() == 0}

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
        state=TrainingState(save=save, load=load),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
        shut_down=dist.destroy_process_group,
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
