"""Tensors in channels_last for a library that takes contiguous ones: the same memory, seen in its own order.

in_order(weight)        # a view, (out, height, width, in) where weight is (out, in, height, width)
"""

from typing import Any

import torch


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous view of the same memory; `tensor` itself where it is contiguous."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)


def all_in_order(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """Weights and buffers of `model` by name, and what its optimizer keeps of each weight, such as momentum, in order.
    A number of steps is left out: all ranks have made as many."""
    states = optimizer.state if optimizer else {}
    named = {name: states[tensor] for name, tensor in model.named_parameters() if tensor in states}
    moments = {
        f"{kind} of {name}": value for name, state in named.items() for kind, value in state.items() if value.dim()
    }
    return {name: in_order(tensor) for name, tensor in (model.state_dict() | moments).items()}


class InOrder:
    """A compressor (compress, decompress) around another one, which gets contiguous tensors. Nothing is copied."""

    def __init__(self, inner: Any):
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, bool]]:
        compressed, context = self.inner.compress(in_order(tensor))
        return compressed, (context, tensor.is_contiguous())

    def decompress(self, tensor: torch.Tensor, context: tuple[Any, bool]) -> torch.Tensor:
        inner, contiguous = context
        tensor = self.inner.decompress(tensor, inner)
        return tensor if contiguous else tensor.permute(0, 3, 1, 2)
