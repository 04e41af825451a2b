"""torch.amp and DistributedDataParallel, which NVIDIA recommends instead of Apex: bf16, or fp16 with a scaler.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_amp --precision bf16  # listens on every address
"""

import dataclasses

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, ddp_options, group_options, start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system.errors import UserError
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded
from benchmarks.common.train.phase_recorder import exchange_of, no_exchange

MIXED = True  # ddp_amp: where fp32, the default, is asked, it runs auto's choice; make bench-all asks for this name


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, find_rank_info("torchrun"), mixed=MIXED)
    dtype = torch.bfloat16 if config.precision == "bf16" else torch.float16
    if dtype == torch.float16 and config.fused:  # ddp_amp: its momentum is then of memory that nobody has written
        raise UserError("fused SGD goes wrong where fp16 leaves out its first step; leave --fused out, or use bf16")
    dist.init_process_group(**group_options(config, context))
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    plain = dataclasses.replace(config, precision="fp32")  # ddp_amp: the autocast is this script's, below
    net = build_model(plain, len(train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids, **ddp_options(config))
    optimizer = build_optimizer(config, net)
    autocast = torch.autocast(context.device.type, dtype)
    scaler = torch.amp.GradScaler(context.device.type, enabled=dtype == torch.float16)  # ddp_amp: bf16 needs none

    def step(images, target):
        optimizer.zero_grad()
        with autocast:  # ddp_amp: forward and loss only; backward runs in the types that forward chose
            output = model(images)
            loss = cross_entropy(output, target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # ddp_amp: leaves the step out where a scaled gradient overflowed
        scaler.update()
        return loss.detach(), output.detach()

    def predict(images):
        with autocast:
            return net.forward(images)  # where the model is compiled, not that: validation has batches of other sizes

    fit(
        config,
        context,
        model=net,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(num_shards=context.world_size, exact=dtype == torch.bfloat16),
        reduce=all_reduce_sum,
        predict=predict,
        extra={"scaler": scaler},
        without_exchange=lambda: no_exchange(model),
        exchange=exchange_of(model),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
    )
    dist.destroy_process_group()


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1, autocast="fp16" if config.precision == "fp16" else "bf16")


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__, precision=("auto", "fp32", "bf16", "fp16"))))
