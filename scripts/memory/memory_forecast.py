"""How much memory a training step takes on each device, before anything runs.

A step of each stage runs on fake tensors, which have sizes and no data, and every storage is counted from its birth to
its end. Within 3 % of torch's own allocations on a CPU (tests/memory/test_memory_forecast.py).
"""

import contextlib
import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.loader import IMAGENET_CLASSES
from benchmarks.common.model import draw_model, residual_blocks, state_of_zeros
from benchmarks.common.stages import find_cuts, flops_and_shapes, stages_at
from benchmarks.common.strategy import Layout

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclasses.dataclass(frozen=True)
class MemoryNeed:
    """Bytes on one device. peak: the most at one time. momentum: all that the optimizer keeps."""

    parameters: int
    gradients: int
    momentum: int
    activations: int
    peak: int


class MemoryTally(TorchDispatchMode):
    """Bytes of the storages that operations make: alive now, and the most at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return made

    def add(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self.alive:  # a view, or an operation in place
            return

        def ended(_: object) -> None:
            del self.alive[key]
            self.now -= num_bytes

        self.alive[key] = weakref.ref(storage, ended)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


def forecast(config: Config, layout: Layout) -> list[MemoryNeed]:
    """What the device of each stage needs for a step. Raises UserError for a cut that the model does not have, and
    where BatchNorm would see one value a channel."""
    num_images = config.global_batch // layout.num_shards
    with torch.device("meta"):
        plan = draw_model(config, IMAGENET_CLASSES)
    num_stages, num_images_of_part = layout.devices_per_shard, num_images // layout.num_microbatches
    cuts = find_cuts(config, plan, num_stages, num_images_of_part) if num_stages > 1 else []
    shapes: list[tuple[int, ...]] = [(3, config.image_size, config.image_size)]
    shapes += [shape for _, shape in flops_and_shapes(stages_at(plan, cuts)[:-1], config.image_size)]
    net = copy.deepcopy(plan)
    with FakeTensorMode() as fake:
        _make_fake(net)
    stages = stages_at(net, cuts)
    block_bytes = [_num_bytes(block.parameters()) for block in residual_blocks(net).values()]
    needs = []
    for number, (stage, shape) in enumerate(zip(stages, shapes, strict=True)):
        waiting = layout.num_microbatches
        if layout.one_f_one_b:
            waiting = min(waiting, layout.devices_per_shard - number)
        with fake:
            images = torch.empty(num_images // layout.num_microbatches, *shape, requires_grad=number > 0)
            try:
                need = _stage_need(config, layout, stage, images, waiting, stage is stages[-1], block_bytes)
            except ValueError as error:
                raise UserError(f"{len(images)} images of {config.image_size} px cannot train: {error}") from None
        if number == 0 and layout.one_process_loads:
            other_images_bytes = 4 * (config.global_batch - num_images) * 3 * config.image_size**2
            need = dataclasses.replace(need, peak=need.peak + other_images_bytes)
        if layout.whole_model_on_each:
            with fake:
                share = max(1, config.global_batch // (layout.num_devices))
                whole = _evaluation_peak(net, config, share) + need.parameters + max(need.parameters, need.momentum)
            elsewhere = _num_bytes(net.parameters()) - need.parameters
            need = dataclasses.replace(need, peak=max(need.peak + elsewhere, whole))
        needs.append(need)
    return needs


def _make_fake(net: nn.Module) -> None:
    """Of a model of the meta device. Drawn on fake tensors, some initial weights would ask for values."""
    for module in net.modules():
        for name, parameter in [*module.named_parameters(recurse=False)]:
            module.register_parameter(name, nn.Parameter(torch.empty(parameter.shape)))
        for name, buffer in [*module.named_buffers(recurse=False)]:
            module.register_buffer(name, torch.empty(buffer.shape, dtype=buffer.dtype))


def _stage_need(
    config: Config,
    layout: Layout,
    stage: nn.Module,
    images: torch.Tensor,
    waiting: int,
    last: bool,
    block_bytes: Sequence[int],
) -> MemoryNeed:
    """One micro-batch through a stage, forwards and back, and the sum for as many as wait. block_bytes: of the residual
    blocks' weights, which FSDP gathers together."""
    parameters = _num_bytes(stage.parameters())
    momentum = sum(_num_bytes(state_of_zeros(config, each).values()) for each in stage.parameters())
    dtype = AUTOCAST.get(layout.autocast or config.precision)
    autocast = torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext()
    num_weight_shards = layout.num_weight_shards
    if num_weight_shards > 1:  # a rank's share of gradients is added below
        for parameter in stage.parameters():
            parameter.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    with MemoryTally() as tally:
        for tensor in (*stage.parameters(), *stage.buffers()):
            tally.add(tensor.untyped_storage())
        before = tally.now
        tally.add(images.untyped_storage())
        with autocast:
            output = stage(images)
        loss = cross_entropy(output, torch.zeros(len(images), dtype=torch.long)) if last else output
        activations = tally.now - before
        loss.backward(None if last else torch.empty_like(loss))
        for parameter in stage.parameters():
            parameter.grad = None
    if num_weight_shards > 1:
        shard, momentum, largest = parameters // num_weight_shards, momentum // num_weight_shards, max(block_bytes)
        rest = before - parameters + momentum  # the buffers, too
        # The backward pass has the next block gathered beside its own, and begins with all gradients of a block beside
        # all activations; what belongs to no block stays gathered.
        step = max(tally.peak - before + 2 * largest, activations + 3 * largest) + parameters - sum(block_bytes)
        peak = rest + max(step + 2 * shard, 3 * shard + images.nbytes)
        return MemoryNeed(shard, shard, momentum, activations, peak)
    # The update has copies of the gradients, with the weight decay.
    peak = max(tally.peak + (waiting - 1) * activations, before + 2 * parameters + images.nbytes)
    return MemoryNeed(
        parameters,
        parameters,
        momentum,
        waiting * activations,
        peak + momentum + layout.num_gradient_copies * parameters,
    )


def _evaluation_peak(net: nn.Module, config: Config, num_images: int) -> int:
    with MemoryTally() as tally, torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tally.add(tensor.untyped_storage())
        net.eval()(torch.empty(num_images, 3, config.image_size, config.image_size))
        net.train()
    return tally.peak


def _num_bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@functools.cache
def peak_bytes(config: Config, layout: Layout) -> int:
    """Of the fullest device, the first one with images that are copied to it meanwhile. Raises UserError."""
    first, *others = forecast(config, layout)
    return max([first.peak + prefetched_bytes(config, layout), *(need.peak for need in others)])


def prefetched_bytes(config: Config, layout: Layout) -> int:
    """uint8 images on the device that reads: those copied ahead, and the step's own."""
    if config.loader == "synthetic":
        return 0
    num_images = config.global_batch // (1 if layout.one_process_loads else layout.num_shards)
    return (config.prefetch + 1) * num_images * 3 * config.image_size**2
