"""NVIDIA Apex: amp's mixed precision and Apex's own DistributedDataParallel, as its documentation shows them.

torchrun --standalone --nproc-per-node 4 -m benchmarks.apex_ddp --config configs/smoke.yaml --opt-level O1
"""

import dataclasses
import importlib.metadata
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.exchange import apex_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import usable_gpus
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    if not usable_gpus():
        raise Unavailable("apex.amp refuses a model on the CPU; run it where there are NVIDIA GPUs, or use ddp_amp")
    try:
        from apex import amp
        from apex.parallel import DistributedDataParallel
    except ImportError as error:
        raise Unavailable(f"NVIDIA Apex cannot be imported ({error}); run scripts/setup/apex.sh") from None
    if config.precision == "fp16" and config.opt_level == "O0":
        raise UserError("opt_level O0 computes in fp32; use --opt-level O1 for fp16, or --precision fp32")
    if config.precision != "tf32":  # apex: amp casts by itself, to fp16, as opt_level says
        config = dataclasses.replace(config, precision="fp32")
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)
    torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    # apex: its DDP copies gradients back in contiguous order
    contiguous_config = dataclasses.replace(config, memory_format="contiguous")
    model = build_model(contiguous_config, train.num_classes).to(rank.device)
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()
    # apex: before the wrap
    model, optimizer = amp.initialize(model, optimizer, opt_level=config.opt_level, verbosity=0)
    ddp = DistributedDataParallel(model)  # apex: finds its device itself, buckets by message size

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
        loss = criterion(output, target)  # apex: in fp32, as amp patches F.cross_entropy
        with amp.scale_loss(loss, optimizer) as scaled_loss:  # apex: small gradients survive fp16
            scaled_loss.backward()
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
        layout(config, rank.world_size),
        without_exchange=lambda: apex_without_exchange(ddp),
        extra_state={"amp": amp},
        columns={"precision": f"apex-{config.opt_level}", "apex": importlib.metadata.version("apex")},
    )


def layout(config: Config, num_devices: int) -> Layout:
    without_amp = config.opt_level == "O0"
    autocast: Literal["", "fp16"] = "" if without_amp else "fp16"
    exact = without_amp and config.memory_format == "contiguous"
    return Layout(num_shards=num_devices, exact=exact, num_gradient_copies=1, autocast=autocast)


def main() -> None:
    allowed: dict[str, Any] = {"precision": ("auto", "fp32", "tf32", "fp16"), "compile": (False,), "fused": (False,)}
    fit(build(load_config(description=__doc__, **allowed)))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
