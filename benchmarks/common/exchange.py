"""What travels between ranks: BatchNorm's buffers, and gradients, to be timed by themselves."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config import Config
from benchmarks.common.rank import Rank
from benchmarks.common.strategy import AllReduce, Exchange


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


def ddp_exchange(ddp: DistributedDataParallel) -> Exchange:
    """With DDP's own buckets and hooks."""
    parameters = [parameter for parameter in ddp.module.parameters() if parameter.requires_grad]
    gradients: list[torch.Tensor] = []

    def communicate() -> None:
        if not gradients:  # not before, for the sake of the run's peak memory
            gradients.extend(_small_random(parameters))
        whole = ddp.module
        ddp.module = _NoComputation(whole, gradients, parameters)
        try:
            ddp(parameters[0]).backward()
        finally:
            ddp.module = whole
        for parameter in parameters:
            parameter.grad = None  # as optimizer.zero_grad() leaves them

    @contextlib.contextmanager
    def without() -> Iterator[None]:
        syncs_buffers = ddp.require_forward_param_sync
        ddp.require_forward_param_sync = False  # no_sync leaves out the next forward pass's broadcast only
        try:
            with ddp.no_sync():
                yield
        finally:
            ddp.require_forward_param_sync = syncs_buffers

    return Exchange(communicate, without)


class _GivenGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _gradient):  # type: ignore[no-untyped-def]
        return None, *ctx.gradients


class _NoComputation(torch.nn.Module):
    """In place of DDP's module: its backward pass yields `gradients`."""

    def __init__(self, whole: torch.nn.Module, gradients: list[torch.Tensor], parameters: list[torch.nn.Parameter]):
        super().__init__()
        self.whole = whole  # for DDP, which sends its buffers
        self.gradients, self.weights = gradients, tuple(parameters)

    def forward(self, _images: torch.Tensor) -> torch.Tensor:
        return _GivenGradients.apply(self.gradients, *self.weights)


def _small_random(parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Zeros would make PowerSGD's memory of errors NaN."""
    generator = torch.Generator().manual_seed(0)
    return [torch.empty_like(each).copy_(1e-6 * torch.randn(each.shape, generator=generator)) for each in parameters]


def apex_exchange(ddp: Any) -> Exchange:
    @contextlib.contextmanager
    def without() -> Iterator[None]:
        ddp.disable_allreduce()
        try:
            yield
        finally:
            ddp.enable_allreduce()

    return Exchange(without=without)


def horovod_exchange(optimizer: Any) -> Exchange:
    def communicate() -> None:
        optimizer.synchronize()  # sends every gradient that no backward pass has sent
        optimizer._synchronized = False

    @contextlib.contextmanager
    def without() -> Iterator[None]:
        # it sends nothing after the first of two passes; step() applies gradients all the same
        optimizer.set_backward_passes_per_step(2)
        try:
            with optimizer.skip_synchronize():
                yield
        finally:
            optimizer._handles.clear()  # else zero_grad() complains
            optimizer.set_backward_passes_per_step(1)

    return Exchange(communicate, without)


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
