"""Pipeline parallel: each rank has one stage of the layers, and micro-batches are under way in all stages at once.

torchrun --standalone --nproc-per-node 2 -m benchmarks.pipeline_parallel --config configs/smoke.yaml --microbatches 4
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import autocast_forward, build_model, build_optimizer, state_of_zeros
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.stages import (
    blocks_of,
    cut_column,
    find_cuts,
    num_microbatches,
    rows_between,
    stages_at,
)
from benchmarks.common.strategy import Layout, Strategy

SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    is_last = rank.rank == rank.world_size - 1
    microbatches = num_microbatches(config, rank.world_size)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.backend, rank.init_method, timeout, device_id=rank.device_id)
    # pipeline: rank 0 reads all training images; each rank evaluates a shard
    train, val = build_loaders(config, rank, only_rank0_reads=True)
    # pipeline: whole on every rank, for evaluation
    model = build_model(config, train.num_classes).to(rank.device)
    if (num_blocks := len(blocks_of(model))) < rank.world_size:
        raise Unavailable(
            f"{config.arch} has {num_blocks} blocks, too few for {rank.world_size} stages; use fewer ranks"
        )
    optimizer = build_optimizer(config, model)  # pipeline: skips other ranks' layers, which get no gradient
    criterion = nn.CrossEntropyLoss()
    cuts = find_cuts(config, model, rank.world_size, config.global_batch // microbatches)
    stages = stages_at(model, cuts)

    def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return criterion(output.float(), target)

    schedule = SCHEDULES[config.pipeline_schedule](
        build_stage(config, rank, stages), microbatches, loss_of, scale_grads=True
    )  # pipeline: scale_grads makes the sum over micro-batches their mean

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        optimizer.zero_grad()
        dist.broadcast(target, src=0)  # pipeline: from the rank with the images to that with the loss
        inputs = [images.flatten(1)] if rank.rank == 0 else []
        losses: list[torch.Tensor] = []
        output = schedule.step(*inputs, target=target, losses=losses)  # pipeline: forward and backward
        optimizer.step()
        if not is_last:
            return None, None
        return torch.stack(losses).mean().detach(), output.detach()

    @torch.no_grad()
    def sync_state() -> None:  # pipeline: each rank sends its stage to all others
        for owner, stage in enumerate(stages):
            tensors = [*stage.parameters(), *stage.buffers()]
            for parameter in stage.parameters():
                for name, zeros in state_of_zeros(config, parameter).items():
                    tensors.append(optimizer.state[parameter].setdefault(name, zeros))
            for tensor in tensors:
                message = tensor.to(rank.device).contiguous()
                dist.broadcast(message, src=owner)
                tensor.copy_(message)

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
        sync_state=sync_state,
        columns={"cut": cut_column(cuts)},
    )


def build_stage(config: Config, rank: Rank, stages: list[nn.Sequential]) -> PipelineStage:
    """Activations travel as rows, (N, C * H * W), since a receiver does not know the memory layout. Their shapes are
    given: PipelineStage would find them by a forward pass, which in torch 2.11 changes BatchNorm's statistics."""
    num_images = config.global_batch // num_microbatches(config, rank.world_size)
    shapes, rows = rows_between(config, stages, num_images, rank.device)
    stage = nn.Sequential(nn.Unflatten(1, shapes[rank.rank]), stages[rank.rank], nn.Flatten(1))
    stage = autocast_forward(config, stage, float32_output=False)  # pipeline: in bf16, activations travel in bf16
    inputs, outputs = rows[rank.rank], rows[rank.rank + 1]
    return PipelineStage(stage, rank.rank, rank.world_size, rank.device, inputs, outputs)


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(
        num_stages=num_devices,
        num_microbatches=num_microbatches(config, num_devices),
        one_f_one_b=config.pipeline_schedule == "1f1b",
        whole_model_on_each=True,
    )


def main() -> None:
    # norm: SyncBatchNorm would hang, as ranks have different layers
    # compile: no stage calls the whole model's forward
    fit(build(load_config(description=__doc__, norm=("batch", "group"), compile=(False,))))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
