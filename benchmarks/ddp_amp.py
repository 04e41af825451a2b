"""torch.amp and DistributedDataParallel, which NVIDIA recommends instead of Apex: bf16, or fp16 with a scaler.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_amp --config configs/smoke.yaml --precision bf16
"""

import dataclasses
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer, start_momentum
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy

FACTS = {"mixed_precision": True}  # ddp_amp: fp32, the default, means auto


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank, scales_gradients=True)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float16
    in_fp16 = dtype == torch.float16
    fp32_config = dataclasses.replace(config, precision="fp32")  # ddp_amp: build_model adds no autocast; step has one
    model = build_model(fp32_config, train.num_classes).to(rank.device)
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))
    # ddp_amp: a fused optimizer looks for overflow on the GPU; any other has the host wait in every step
    optimizer = build_optimizer(dataclasses.replace(config, fused=config.fused or in_fp16), model)
    if in_fp16:
        start_momentum(optimizer)  # ddp_amp: else, if the scaler skips step 1, momentum is uninitialised
    criterion = nn.CrossEntropyLoss()
    autocast = torch.autocast(rank.device.type, dtype)
    scaler = torch.amp.GradScaler(rank.device.type, enabled=in_fp16)  # ddp_amp: bf16 needs none

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        with autocast:  # ddp_amp: forward and loss only; backward takes their types
            output = ddp(images)
            loss = criterion(output, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # ddp_amp: skips it if a gradient overflowed
        scaler.update()
        return loss.detach(), output.detach()

    def predict(images: torch.Tensor) -> torch.Tensor:
        with autocast:
            return model.forward(images)  # not through torch.compile, which would recompile for other batch sizes

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
        predict=predict,
        without_exchange=lambda: ddp_without_exchange(ddp),
        extra_state={"scaler": scaler},
        columns={"bucket_cap_mb": ddp.bucket_bytes_cap / 2**20} | ({"fused": True} if in_fp16 else {}),
    )


def layout(config: Config, num_devices: int) -> Layout:
    autocast: Literal["bf16", "fp16"] = "fp16" if config.precision == "fp16" else "bf16"
    return Layout(num_shards=num_devices, exact=autocast == "bf16", num_gradient_copies=1, autocast=autocast)


def main() -> None:
    fit(build(load_config(description=__doc__, precision=("auto", "fp32", "bf16", "fp16"))))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
