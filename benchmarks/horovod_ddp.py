"""Horovod: one process per GPU, gradients averaged by Horovod's ring as the backward pass produces them.

horovodrun --gloo -np 2 -H localhost:2 python -m benchmarks.horovod_ddp --config configs/smoke.yaml
"""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.common.channels_last import ContiguousCompressor, contiguous_views
from benchmarks.common.communication import Communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import Unavailable
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import usable_gpus
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import find_rank_info, rank_zero_first, set_up_rank
from benchmarks.common.strategy import Layout, Strategy, TrainingState


def build(config: Config) -> Strategy:
    rank_info = find_rank_info("horovodrun")
    try:
        import horovod.torch as hvd
    except ImportError as error:
        raise Unavailable(f"Horovod cannot be imported ({error}); run scripts/setup/install_horovod.sh") from None
    num_gpus = usable_gpus()
    if num_gpus and not hvd.nccl_built():
        raise Unavailable(
            "this Horovod has no NCCL for GPUs; install CUDA's toolkit, then: FORCE=1 scripts/setup/install_horovod.sh"
        )
    os.environ.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", f"{config.timeout_s:.0f}")  # horovod: by default 30
    hvd.init()  # horovod: finds the other ranks through horovodrun
    config, context = set_up_rank(config, rank_info, backend="horovod-nccl" if num_gpus else "horovod-gloo")
    with rank_zero_first(context.rank, lambda: hvd.allreduce(torch.zeros(1), name="barrier")):
        loaders = build_loaders(config, context)
    model = build_model(config, len(loaders.train.classes), context.device)
    hvd.broadcast_parameters(contiguous_views(model), root_rank=0)  # horovod: everyone starts from rank 0's weights
    optimizer = hvd.DistributedOptimizer(  # horovod: step() waits for the averaged gradients
        build_optimizer(config, model),
        named_parameters=model.named_parameters(),
        # horovod: it takes contiguous tensors only
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

    # horovod: its broadcast_optimizer_state takes a hidden step on a fresh optimizer, which decays the weights
    def sync_state() -> None:  # horovod: rank 0's weights, BatchNorm statistics and momentum for everyone
        hvd.broadcast_parameters(contiguous_views(model, optimizer), root_rank=0)

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:  # horovod: returns the sum; `tensor` stays one rank's
        return hvd.allreduce(tensor, op=hvd.Sum)

    @contextlib.contextmanager
    def without_communication() -> Iterator[None]:
        # horovod: of two passes a step, it sends nothing after the first. step() applies the gradients all the same
        optimizer.set_backward_passes_per_step(2)
        try:
            with optimizer.skip_synchronize():
                yield
        finally:
            optimizer._handles.clear()  # zero_grad() would complain that nobody has waited for them
            optimizer.set_backward_passes_per_step(1)

    def communicate() -> None:  # horovod: sends every gradient that no backward pass has sent, as step() does
        optimizer.synchronize()
        optimizer._synchronized = False

    return Strategy(
        config,
        context,
        model=model,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, context.world_size),
        communication=Communication(all_reduce, communicate, without_communication),
        state=TrainingState(sync=sync_state),
        columns={"horovod": importlib.metadata.version("horovod")},
        shut_down=hvd.shutdown,
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, compression=config.compression, num_gradient_copies=1)


if __name__ == "__main__":
    # SyncBatchNorm would look for a torch.distributed group, which Horovod does not start.
    run_and_exit(lambda: fit(build(load_config(description=__doc__, norm=("batch", "group")))))
