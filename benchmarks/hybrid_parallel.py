"""Hybrid: each rank's model lies over two GPUs of its own, and DistributedDataParallel averages between the ranks.

torchrun --standalone --nproc-per-node 2 -m benchmarks.hybrid_parallel --config configs/smoke.yaml
"""

from importlib.metadata import entry_points

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import usable_gpus
from benchmarks.common.model import autocast_forward, build_model, build_optimizer
from benchmarks.common.rank import (
    RankInfo,
    all_reduce_sum,
    ddp_options,
    find_rank_info,
    process_group_options,
    rank_zero_first,
    set_up_rank,
)
from benchmarks.common.stages import Staged, cut_column, find_cuts, num_splits, send, stages_at
from benchmarks.common.strategy import Layout, Strategy, TrainingState
from scripts.shared.options_as_typed import option_as_typed


def build(config: Config) -> Strategy:
    rank_info = find_rank_info("torchrun")
    devices = two_devices(rank_info)
    backend = nccl_of_several_gpus() if devices[0].type == "cuda" else None
    first_gpu = 2 * rank_info.local_rank  # hybrid: a rank has this GPU and the next
    config, context = set_up_rank(config, rank_info, backend, first_gpu=first_gpu, devices_per_rank=len(set(devices)))
    options = process_group_options(config, context)
    options.pop("device_id", None)  # hybrid: a group bound to one GPU refuses the gradients of the other
    dist.init_process_group(**options)
    # hybrid: not dist.barrier, which would guess a GPU, since the group is bound to none
    with rank_zero_first(context.rank, lambda: all_reduce_sum(torch.zeros(1, device=context.device)).item()):
        loaders = build_loaders(config, context, devices_per_rank=len(set(devices)))
    module = build_model(config, len(loaders.train.classes), context.device)
    cuts = find_cuts(config, module, 2, config.split_size or config.global_batch // context.world_size)
    stages = stages_at(module, cuts)
    staged = autocast_forward(config, Staged(stages, devices, config.split_size, send))
    model = DistributedDataParallel(staged, **ddp_options(config))  # hybrid: no device_ids
    optimizer = build_optimizer(config, module)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    # hybrid: rank 0's BatchNorm statistics for all, tensor by tensor, for they are on two devices
    def sync_state() -> None:
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)

    return Strategy(
        config,
        context,
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, 2 * context.world_size),
        state=TrainingState(sync=sync_state),
        predict=staged,
        communication=ddp_communication(model),
        devices=devices,
        columns={"cut": cut_column(cuts), "bucket_cap_mb": model.bucket_bytes_cap / 2**20},
        shut_down=dist.destroy_process_group,
    )


def nccl_of_several_gpus() -> str:
    """NCCL's backend whose group takes tensors from both GPUs of a rank. From torch 2.15 on that is not `nccl`, which
    is bound to one GPU there (ProcessGroupNCCL2, pytorch pull request 192281), but what `nccl` was before."""
    named = {backend.name for backend in entry_points(group="torch.distributed.backends")}
    return "nccl-legacy" if "nccl-legacy" in named else "nccl"


def two_devices(rank_info: RankInfo) -> list[torch.device]:
    """This rank's two GPUs, or the CPU twice where there is none. Raises Unavailable on a machine with one GPU,
    UserError where the ranks are too many for the GPUs."""
    num_gpus = usable_gpus()
    if num_gpus == 0:
        return [torch.device("cpu")] * 2
    if num_gpus == 1:
        raise Unavailable("hybrid_parallel needs two GPUs a rank, and there is one; model_parallel runs on one")
    first = 2 * rank_info.local_rank
    if first + 1 >= num_gpus:
        raise UserError(
            f"rank {rank_info.rank} wants GPUs {first} and {first + 1}, but {num_gpus} can be seen; "
            f"start {num_gpus // 2} ranks a node: {option_as_typed('NPROC', num_gpus // 2)}"
        )
    return [torch.device("cuda", first), torch.device("cuda", first + 1)]


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


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__, compile=(False,)))))
