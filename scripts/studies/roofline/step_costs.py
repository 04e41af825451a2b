"""The FLOPs and bytes of one training step, layer by layer, and the roofline of GPUs that are not available.

    ./bench study roofline --arch resnet50 --image-size 224 --batch 256 [--layers]

The step is traced with tensors that have shapes but no data (FakeTensorMode), in seconds and without a GPU. Bytes are
those that each operation reads and writes. "Fused" leaves out the bytes that do not travel where every elementwise
operation runs inside the kernel of the operation before it. A layer takes the longer of computing and moving.
"""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torchvision
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.common.config.architectures import architecture_of
from benchmarks.common.system.errors import UserError
from scripts.options.study_options import RooflineOptions
from scripts.studies.measured_csv import add_rows
from scripts.studies.roofline.analysis import Layer, forecast_rows, forecast_text

DTYPES = {"fp32": None, "bf16": torch.bfloat16}  # of autocast; tf32 moves fp32's bytes, fp16 those of bf16


@dataclasses.dataclass
class Operation:
    """One operation of the step. A tensor is identified by (storage, how often the storage was written before)."""

    name: str
    """Such as aten::convolution."""
    layer: str
    flops: int
    pointwise: bool
    in_optimizer: bool
    reads: dict[tuple[int, int], int]
    """Bytes of each tensor read."""
    writes: dict[tuple[int, int], int]


class OperationTrace(TorchDispatchMode):
    """Records every operation that runs under it, except views, which move no bytes."""

    def __init__(self, net: torch.nn.Module):
        super().__init__()
        self.operations: list[Operation] = []
        self.kept: list[torch.Tensor] = []  # so that no two storages of a step share an address
        self.versions: collections.Counter[int] = collections.Counter()
        self.in_optimizer = False
        self.inside: list[tuple[str, int]] = []  # modules at work in the forward pass, and their first autograd node
        self.nodes: dict[int, str] = {}  # which module made which autograd node, the innermost
        for name, module in net.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._enter(name))
            module.register_forward_hook(lambda *_: self._leave())

    def _enter(self, name: str) -> None:
        self.inside.append((name, torch._C._autograd._get_sequence_nr()))

    def _leave(self) -> None:
        name, first = self.inside.pop()
        for node in range(first, torch._C._autograd._get_sequence_nr()):
            self.nodes.setdefault(node, name)  # inner modules leave first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before, outputs = _tensors((args, kwargs)), [*_written(func, args), *_tensors(result)]
        if func.is_view or func._schema.name == "aten::detach" or not outputs:
            return result
        reads = {self._key(tensor): _bytes(tensor) for tensor in before}
        for key in {tensor.untyped_storage()._cdata for tensor in outputs}:
            self.versions[key] += 1
        writes = {self._key(tensor): _bytes(tensor) for tensor in outputs}
        count = flop_registry.get(func.overloadpacket)
        flops = count(*args, **(kwargs or {}), out_val=result) if count else 0
        pointwise = torch.Tag.pointwise in func.tags
        name = func._schema.name
        self.operations.append(Operation(name, self._layer(), flops, pointwise, self.in_optimizer, reads, writes))
        self.kept += [*before, *outputs]
        return result

    def _key(self, tensor: torch.Tensor) -> tuple[int, int]:
        storage = tensor.untyped_storage()._cdata
        return storage, self.versions[storage]

    def _layer(self) -> str:
        """The innermost module at work, or whose backward pass it is; else the loss or the optimizer."""
        node = torch._C._current_autograd_node()
        made_by = self.nodes.get(node._sequence_nr()) if node else self.inside[-1][0] if self.inside else None
        return made_by or "loss and optimizer"


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _written(func: Any, args: Any) -> list[torch.Tensor]:
    """Arguments that an operation writes in place."""
    named = zip(func._schema.arguments, args, strict=False)
    return [value for argument, value in named if argument.is_write and isinstance(value, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def trace_step(
    make_net: Callable[[], torch.nn.Module], batch: int, image_size: int, autocast: torch.dtype | None = None
) -> list[Operation]:
    """Every operation of the forward pass, the backward pass and the optimizer step (SGD with momentum) of a model,
    without computing any.

    make_net: builds a classifier of images (N, 3, image_size, image_size); called where tensors hold no data.
    """
    with FakeTensorMode():
        net = make_net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, foreach=False)
        for parameter in net.parameters():  # a step that is not the first: momentum buffers are there
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        images, target = torch.empty(batch, 3, image_size, image_size), torch.zeros(batch, dtype=torch.int64)
        with OperationTrace(net) as trace:
            with torch.autocast("cpu", autocast, enabled=autocast is not None):
                scores = net(images)
            cross_entropy(scores.float(), target).backward()
            trace.in_optimizer = True
            optimizer.step()
    return trace.operations


def sum_by_layer(operations: list[Operation]) -> list[Layer]:
    """FLOPs and bytes of each layer, unfused and fused, in the order of first use."""
    fused = dict(enumerate(_fused_bytes(operations)))
    layers: dict[str, list[int]] = {}
    for number, operation in enumerate(operations):
        sums = layers.setdefault(operation.layer, [0, 0, 0])
        moved = sum(operation.reads.values()) + sum(operation.writes.values())
        for place, value in enumerate((operation.flops, moved, fused[number])):
            sums[place] += value
    return [Layer(name, *sums) for name, sums in layers.items()]


def _fused_bytes(operations: list[Operation]) -> Iterator[int]:
    """Bytes of each operation where each elementwise operation runs in the kernel that made its largest input.

    The operation then does not read that input, and where no other operation reads it, the input is not written. The
    optimizer step is not fused with the backward pass.
    """
    made_by = {key: number for number, operation in enumerate(operations) for key in operation.writes}
    readers = collections.Counter(key for operation in operations for key in operation.reads)
    not_read: dict[int, tuple[int, int]] = {}
    not_written = set()
    for number, operation in enumerate(operations):
        made = [key for key in operation.reads if _is_optimizer(operations, made_by.get(key)) == operation.in_optimizer]
        if operation.pointwise and made:
            not_read[number] = max(made, key=operation.reads.__getitem__)
            if readers[not_read[number]] == 1:
                not_written.add(not_read[number])
    for number, operation in enumerate(operations):
        read = sum(size for key, size in operation.reads.items() if key != not_read.get(number))
        written = sum(size for key, size in operation.writes.items() if key not in not_written)
        yield read + written


def _is_optimizer(operations: list[Operation], number: int | None) -> bool | None:
    """Whether the operation with this number is part of the optimizer step; None for a tensor that existed before."""
    return None if number is None else operations[number].in_optimizer


def main(options: RooflineOptions) -> int:
    if options.arch not in torchvision.models.list_models():
        raise UserError(f"torchvision has no model {options.arch!r}; `./bench flags` lists those of this suite")
    if options.batch < 1 or options.image_size < 1:
        raise UserError(f"--batch is {options.batch} and --image-size {options.image_size}, but each must be 1 or more")
    if (optimizer := architecture_of(options.arch).optimizer) != "SGD":
        raise UserError(
            f"this study counts SGD's update, and {options.arch} is trained with {optimizer}; choose a ResNet"
        )
    make_net = functools.partial(torchvision.models.get_model, options.arch)
    layers = {
        name: sum_by_layer(trace_step(make_net, options.batch, options.image_size, dtype))
        for name, dtype in DTYPES.items()
    }
    if options.layers:
        for name, found in layers.items():
            print(f"{name}: {'layer':<28} {'GFLOP':>10} {'MB':>10} {'MB fused':>10}")
            for layer in found:
                moved = f"{layer.moved_bytes / 1e6:>10,.1f} {layer.fused_bytes / 1e6:>10,.1f}"
                print(f"{'':{len(name) + 1}} {layer.name:<28} {layer.flops / 1e9:>10,.2f} {moved}")
    rows = forecast_rows(layers, options.arch, options.image_size, options.batch)
    print(forecast_text(rows))
    if options.output:
        add_rows(options.output, rows, replace=True)
    return 0
