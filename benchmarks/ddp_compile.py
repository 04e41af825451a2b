"""torch.compile and DistributedDataParallel: the model's own operations fused, its graph split at DDP's buckets.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_compile --config configs/smoke.yaml
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exchange import ddp_options, ddp_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import prepare_compiler
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)
    prepare_compiler(on_gpu=rank.device.type == "cuda")
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.ddp_backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    model.compile()  # ddp_compile: the module itself, so that its tensors keep their names
    ddp = DistributedDataParallel(model, rank.device_ids, **ddp_options(config))
    optimizer = build_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = ddp(images)
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
        layout(config, rank.world_size),
        predict=model.forward,  # ddp_compile: other batch sizes would each be compiled
        without_exchange=lambda: ddp_without_exchange(ddp),
        columns={
            "bucket_cap_mb": ddp.bucket_bytes_cap / 2**20,
            "compile_s": None,  # ddp_compile: fit times the first step, which compiles
            "optimize_ddp": str(torch._dynamo.config.optimize_ddp),
        },
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, exact=False, num_gradient_copies=1)


def main() -> None:
    # its own compile() would overwrite that of --compile and --cuda-graphs
    fit(build(load_config(description=__doc__, compile=(False,), cuda_graphs=(False,))))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
