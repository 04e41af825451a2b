"""Tensors in channels_last for a library that takes contiguous ones: views of the same memory.

contiguous_view(weight)        # a view, (out, height, width, in) where weight is (out, in, height, width)
"""

from typing import Any

import torch


def contiguous_view(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous view of the same memory; `tensor` itself where it is contiguous."""
    return tensor if tensor.is_contiguous() else tensor.permute(0, 2, 3, 1)


def contiguous_views(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, torch.Tensor]:
    """Weights and buffers of `model` by name, and what its optimizer keeps of each weight, as contiguous views."""
    states = optimizer.state if optimizer else {}
    named = {name: states[tensor] for name, tensor in model.named_parameters() if tensor in states}
    moments = {
        f"{kind} of {name}": value for name, state in named.items() for kind, value in state.items() if value.dim()
    }
    return {name: contiguous_view(tensor) for name, tensor in (model.state_dict() | moments).items()}


class ContiguousCompressor:
    """A compressor (compress, decompress) around another one, which gets contiguous tensors. Nothing is copied."""

    def __init__(self, inner: Any):
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[Any, bool]]:
        compressed, ctx = self.inner.compress(contiguous_view(tensor))
        return compressed, (ctx, tensor.is_contiguous())

    def decompress(self, tensor: torch.Tensor, ctx: tuple[Any, bool]) -> torch.Tensor:
        inner_ctx, contiguous = ctx
        tensor = self.inner.decompress(tensor, inner_ctx)
        return tensor if contiguous else tensor.permute(0, 3, 1, 2)
