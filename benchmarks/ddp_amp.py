"""torch.amp and DistributedDataParallel, which NVIDIA recommends instead of Apex: bf16, or fp16 with a scaler.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_amp --config configs/smoke.yaml --precision bf16
"""

import dataclasses
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer, start_momentum
from benchmarks.common.rank import ddp_options, find_rank_info, process_group_options, rank_zero_first, set_up_rank
from benchmarks.common.strategy import Layout, Strategy, StrategyFacts, TrainingState

FACTS = StrategyFacts(mixed_precision=True)  # ddp_amp: where fp32, the default, is requested, it runs auto's choice


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"), mixed=FACTS.mixed_precision)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float16
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    fp32_config = dataclasses.replace(config, precision="fp32")  # ddp_amp: build_model adds no autocast; step has one
    module = build_model(fp32_config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))
    in_fp16 = dtype == torch.float16
    # ddp_amp: in fp16 a fused optimizer looks for overflow on the GPU; any other makes the host wait in every step
    optimizer = build_optimizer(dataclasses.replace(config, fused=config.fused or in_fp16), module)
    if in_fp16:
        start_momentum(optimizer)  # ddp_amp: else, if the scaler skips step 1, momentum is uninitialised
    criterion = nn.CrossEntropyLoss()
    autocast = torch.autocast(context.device.type, dtype)
    scaler = torch.amp.GradScaler(context.device.type, enabled=in_fp16)  # ddp_amp: bf16 needs none

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        with autocast:  # ddp_amp: forward and loss only; backward runs in the types that forward chose
            output = model(images)
            loss = criterion(output, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # ddp_amp: skips the step if a scaled gradient overflowed
        scaler.update()
        return loss.detach(), output.detach()

    def predict(images: torch.Tensor) -> torch.Tensor:
        with autocast:
            # bypasses torch.compile, which would recompile for validation's batch sizes
            return module.forward(images)

    return Strategy(
        config,
        context,
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, context.world_size),
        predict=predict,
        state=TrainingState(extra={"scaler": scaler}),
        communication=ddp_communication(model),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20} | ({"fused": True} if in_fp16 else {}),
        shut_down=dist.destroy_process_group,
    )


def layout(config: Config, num_devices: int) -> Layout:
    autocast: Literal["bf16", "fp16"] = "fp16" if config.precision == "fp16" else "bf16"
    return Layout(num_shards=num_devices, exact=autocast == "bf16", num_gradient_copies=1, autocast=autocast)


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__, precision=("auto", "fp32", "bf16", "fp16")))))
