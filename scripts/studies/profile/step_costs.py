"""The FLOPs and bytes of one training step, operation by operation, and the memory bandwidth of GPUs: for their roof.

Traced with tensors that have shapes but no data (FakeTensorMode), in seconds and without a GPU.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# By the names of devices, from NVIDIA's data sheets: V100 (2020), A100 80GB (2021), H100 SXM (2023), H200 SXM (2023).
GB_PER_S = {
    r"Tesla V100-(SXM2|PCIE)-(16|32)GB": 900.0,
    r"NVIDIA A100-SXM4-80GB": 2039.0,
    r"NVIDIA H100 80GB HBM3": 3350.0,
    r"NVIDIA H200": 4800.0,
}
# Of autocast, whose bytes travel in each precision.
DTYPES = {"fp32": None, "tf32": None, "fp16": torch.bfloat16, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Operation:
    """name: such as aten::convolution. moved_bytes: read and written."""

    name: str
    flops: int
    moved_bytes: int
    in_optimizer: bool


class OperationTrace(TorchDispatchMode):
    """Of every operation but views, which move no bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.in_optimizer = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs, outputs = _tensors((args, kwargs)), [*_written(func, args), *_tensors(result)]
        name = func._schema.name
        if func.is_view or name == "aten::detach" or not outputs:
            return result
        count = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        self.operations.append(Operation(name, flops, _num_bytes(inputs) + _num_bytes(outputs), self.in_optimizer))
        return result


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _written(func: Any, args: Any) -> list[torch.Tensor]:
    """Arguments that an operation writes in place."""
    named = zip(func._schema.arguments, args, strict=False)
    return [value for argument, value in named if argument.is_write and isinstance(value, torch.Tensor)]


def _num_bytes(tensors: list[torch.Tensor]) -> int:
    """Each storage once."""
    return sum({tensor.untyped_storage()._cdata: tensor.nbytes for tensor in tensors}.values())


def trace_step(
    make_net: Callable[[], torch.nn.Module], batch: int, image_size: int, autocast: torch.dtype | None = None
) -> list[Operation]:
    """Of the forward pass, the backward pass and SGD with momentum. make_net: a classifier of images (N, 3, image_size,
    image_size)."""
    with FakeTensorMode():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=False)
        for parameter in net.parameters():  # a step that is not the first: momentum buffers are there
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        images, target = torch.empty(batch, 3, image_size, image_size), torch.zeros(batch, dtype=torch.int64)
        with OperationTrace() as trace:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                scores = net(images)
            cross_entropy(scores.float(), target).backward()
            trace.in_optimizer = True
            optimizer.step()
    return trace.operations
