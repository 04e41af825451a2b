"""How values travel between the ranks of a strategy. For DDP-like scripts: ddp_communication(model)."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.rank import AllReduce, all_reduce_sum

Communicate = Callable[[], None]
"""Sends what a step sends, the way the step does, with no computation beside it."""
WithoutCommunication = Callable[[], contextlib.AbstractContextManager[None]]
"""A context for one step: the step computes the same, but no rank gets anything of the others."""


def one_rank(tensor: torch.Tensor) -> torch.Tensor:
    """The AllReduce of a strategy with one rank."""
    return tensor


@dataclasses.dataclass(frozen=True)
class Communication:
    """all_reduce: sums a tensor over the ranks. communicate: the communication of a step alone; None: it cannot be
    separated. without_communication: a step without it; None: it cannot be left out. waits_within_phases: ranks wait
    for each other within other phases of the step, where no mark can tell the wait apart."""

    all_reduce: AllReduce = one_rank
    communicate: Communicate | None = None
    without_communication: WithoutCommunication | None = None
    waits_within_phases: bool = False


def ddp_communication(model: DistributedDataParallel) -> Communication:
    """The Communication of a strategy that wraps its model in DistributedDataParallel."""
    without_communication = functools.partial(_without_communication, model)
    return Communication(all_reduce_sum, _ddp_communicate(model), without_communication)


@contextlib.contextmanager
def _without_communication(model: DistributedDataParallel) -> Iterator[None]:
    """DDP's no_sync for one step, which leaves out the broadcast of buffers as well as the gradients. By itself no_sync
    leaves out the broadcast of the *next* forward pass."""
    before = model.require_forward_param_sync
    model.require_forward_param_sync = False
    try:
        with model.no_sync():
            yield
    finally:
        model.require_forward_param_sync = before


class _GivenGradients(torch.autograd.Function):
    """A loss whose backward pass returns the given gradients."""

    @staticmethod
    def forward(ctx, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.gradients = gradients
        return parameters[0].new_zeros(())

    @staticmethod
    def backward(ctx, _gradient):  # type: ignore[no-untyped-def]
        return None, *ctx.gradients


class _NoComputation(torch.nn.Module):
    """Takes the place of DDP's module, and computes nothing. The output's backward pass yields `gradients`."""

    def __init__(self, whole: torch.nn.Module, gradients: list[torch.Tensor], parameters: list[torch.nn.Parameter]):
        super().__init__()
        self.whole = whole  # DDP looks for the buffers that it sends before every step
        self.gradients, self.weights = gradients, tuple(parameters)

    def forward(self, _images: torch.Tensor) -> torch.Tensor:
        return _GivenGradients.apply(self.gradients, *self.weights)


def _ddp_communicate(model: DistributedDataParallel) -> Communicate:
    """DDP's own communication, with its buckets and hooks, around a module that computes nothing."""
    parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
    gradients: list[torch.Tensor] = []

    def communicate() -> None:
        if not gradients:  # not before the step breakdown: the run's peak memory would have a copy of the weights more
            gradients.extend(_small_random(parameters))
        whole = model.module
        model.module = _NoComputation(whole, gradients, parameters)
        try:
            model(parameters[0]).backward()
        finally:
            model.module = whole
        for parameter in parameters:
            parameter.grad = None  # as optimizer.zero_grad() leaves them

    return communicate


def _small_random(parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """A tensor like each parameter, of tiny values: by zeros PowerSGD's memory of errors would become NaN."""
    generator = torch.Generator().manual_seed(0)
    return [torch.empty_like(each).copy_(1e-6 * torch.randn(each.shape, generator=generator)) for each in parameters]
