"""Model parallel in one process: half of the layers on each of two GPUs, the batch whole or in micro-batches.

python -m benchmarks.model_parallel --config configs/smoke.yaml --split-size 8
"""

import torch
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import autocast_forward, build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.stages import Send, Staged, cut_column, find_cuts, num_splits, send, stages_at
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"one_node": True}


def build(config: Config) -> Strategy:
    rank = Rank.alone(2)
    config = prepare(config, rank)
    # model_parallel: without a second GPU both halves share one device
    devices = [rank.devices[0], rank.devices[-1]]
    if config.copy_stream and devices[0] == devices[1]:
        raise UserError("copy_stream needs two GPUs: on one device nothing is copied; leave --copy-stream out")
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    cuts = find_cuts(config, model, 2, config.split_size or config.global_batch)
    stages = stages_at(model, cuts)  # model_parallel: the model's own layers, in two halves
    hand_over = send_on_streams(devices) if config.copy_stream else send
    staged = Staged(stages, devices, config.split_size, hand_over)  # model_parallel: each half moves to its device
    staged = autocast_forward(config, staged)
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = staged(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    return Strategy(
        config,
        rank,
        model,
        optimizer,
        train,
        val,
        criterion,
        step,
        layout(config, len(rank.devices)),
        predict=staged,
        columns={"cut": cut_column(cuts)},
    )


def send_on_streams(devices: list[torch.device]) -> Send:
    """Copies from devices[0] to devices[1] on CUDA streams of their own. On those that compute, a copy would wait for
    the second GPU, and the first GPU for the copy."""
    copying = [torch.cuda.Stream(device) for device in devices]

    def send_beside(activation: torch.Tensor, device: torch.device) -> torch.Tensor:
        if activation.device == device:
            return activation
        computing = [torch.cuda.current_stream(device) for device in devices]
        copying[0].wait_stream(computing[0])  # model_parallel: the activation may still be in the making
        with torch.cuda.stream(copying[0]), torch.cuda.stream(copying[1]):
            arrived = activation.to(device, non_blocking=True)
        computing[1].wait_stream(copying[1])
        activation.record_stream(copying[0])  # model_parallel: its memory stays until the copy has read it
        arrived.record_stream(computing[1])  # model_parallel: made on one stream, used on another
        return arrived

    return send_beside


def layout(config: Config, num_devices: int) -> Layout:
    num_microbatches = num_splits(config.split_size, config.global_batch)
    return Layout(
        num_shards=1,
        num_stages=2,
        num_microbatches=num_microbatches,
        split_size=config.split_size,
        num_stage_devices=min(2, num_devices),
    )


def main() -> None:
    # norm: SyncBatchNorm needs a process group
    fit(build(load_config(description=__doc__, norm=("batch", "group"), compile=(False,))))


if __name__ == "__main__":
    run_and_exit(main)
