"""What travels between ranks: BatchNorm's buffers, and gradients, which a step can leave out to be timed."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config
from benchmarks.common.rank import Rank
from benchmarks.common.strategy import AllReduce


def sync_buffers(model: torch.nn.Module, rank: Rank, all_reduce: AllReduce) -> None:
    """Rank 0's: BatchNorm's running statistics follow each rank's own shard."""
    buffers = list(model.buffers())
    if buffers:
        flat = flatten(buffers, rank.device)
        fill(buffers, all_reduce(flat if rank.rank == 0 else torch.zeros_like(flat)))


def flatten(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """One float32 vector."""
    vectors = [tensor.detach().to(device, torch.float32).flatten() for tensor in tensors]
    return torch.cat(vectors) if vectors else torch.zeros(0, device=device)


@torch.no_grad()
def fill(tensors: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """The inverse of `flatten`."""
    for tensor, values in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


def ddp_options(config: Config) -> dict[str, Any]:
    options = {name: getattr(config, name) for name in ("static_graph", "gradient_as_bucket_view")}
    if not config.broadcast_buffers:  # torch 2.15 warns whoever names it
        options["broadcast_buffers"] = False
    return options | {"bucket_cap_mb": config.bucket_cap_mb or None}


@contextlib.contextmanager
def ddp_without_exchange(ddp: DistributedDataParallel) -> Iterator[None]:
    syncs_buffers = ddp.require_forward_param_sync
    ddp.require_forward_param_sync = False  # no_sync leaves out the next forward pass's broadcast only
    try:
        with ddp.no_sync():
            yield
    finally:
        ddp.require_forward_param_sync = syncs_buffers


@contextlib.contextmanager
def apex_without_exchange(ddp: Any) -> Iterator[None]:
    ddp.disable_allreduce()
    try:
        yield
    finally:
        ddp.enable_allreduce()


@contextlib.contextmanager
def horovod_without_exchange(optimizer: Any) -> Iterator[None]:
    # it sends nothing after the first of two passes; step() applies gradients all the same
    optimizer.set_backward_passes_per_step(2)
    try:
        with optimizer.skip_synchronize():
            yield
    finally:
        optimizer._handles.clear()  # else zero_grad() complains
        optimizer.set_backward_passes_per_step(1)


def contiguous_view(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)


def contiguous_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """Of weights, buffers and the optimizer's state, by name."""
    named = {name: optimizer.state.get(tensor, {}) for name, tensor in model.named_parameters()} if optimizer else {}
    kept = {f"{kind} of {name}": value for name, state in named.items() for kind, value in state.items() if value.dim()}
    return {name: contiguous_view(tensor) for name, tensor in (model.state_dict() | kept).items()}


class ContiguousCompressor:
    """Horovod takes contiguous tensors only: gives `inner` views of the same memory."""

    def __init__(self, inner: Any):
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, bool]]:
        compressed, ctx = self.inner.compress(contiguous_view(tensor))
        return compressed, (ctx, tensor.is_contiguous())

    def decompress(self, tensor: torch.Tensor, ctx: tuple[Any, bool]) -> torch.Tensor:
        inner_ctx, contiguous = ctx
        tensor = self.inner.decompress(tensor, inner_ctx)
        return tensor if contiguous else tensor.permute(0, 3, 1, 2)
