"""Horovod: one process per GPU, gradients averaged by Horovod's ring as the backward pass produces them.

horovodrun --gloo -np 2 -H localhost:2 python -m benchmarks.horovod_ddp --config configs/smoke.yaml
"""

import importlib.metadata
import os

import torch
from torch import nn

from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable
from benchmarks.common.exchange import ContiguousCompressor, contiguous_state, horovod_without_exchange
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    rank = Rank.from_env("horovodrun")
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise Unavailable(f"Horovod cannot be imported ({error}); run scripts/setup/horovod.sh") from None
    on_gpu = rank.device.type == "cuda"
    if on_gpu and not hvd.nccl_built():
        raise Unavailable("this Horovod was built without NCCL; where torch sees a GPU, run scripts/setup/horovod.sh")
    config = prepare(config, rank)
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", f"{config.timeout_s:.0f}")  # horovod: by default 30
    hvd.init()  # horovod: finds the other ranks through horovodrun
    if on_gpu:
        torch.cuda.set_device(rank.device)
    train, val = build_loaders(config, rank)
    model = build_model(config, train.num_classes).to(rank.device)
    hvd.broadcast_parameters(contiguous_state(model), root_rank=0)  # horovod: everyone starts from rank 0's weights
    optimizer = hvd.DistributedOptimizer(  # horovod: step() waits for the averaged gradients
        build_optimizer(config, model),
        named_parameters=model.named_parameters(),
        compression=ContiguousCompressor(getattr(hvd.Compression, config.compression)),
    )
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    # horovod: its broadcast_optimizer_state takes a hidden step on a fresh optimizer
    def sync_state() -> None:  # horovod: everyone gets rank 0's state
        hvd.broadcast_parameters(contiguous_state(model, optimizer), root_rank=0)

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:  # horovod: returns the sum; `tensor` stays one rank's
        return hvd.allreduce(tensor, op=hvd.Sum)

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
        all_reduce=all_reduce,
        without_exchange=lambda: horovod_without_exchange(optimizer),
        sync_state=sync_state,
        columns={
            "backend": "horovod-nccl" if on_gpu else "horovod-gloo",
            "horovod": importlib.metadata.version("horovod"),
        },
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, compression=config.compression, num_gradient_copies=1)


def main() -> None:
    # norm: SyncBatchNorm needs a group of torch.distributed
    fit(build(load_config(description=__doc__, norm=("batch", "group"))))
    import horovod.torch as hvd

    hvd.shutdown()


if __name__ == "__main__":
    run_and_exit(main)
