"""How much memory a training step will take on each device, before anything runs: what fits, and what would.

    python -m scripts.suite.forecast --memory-gb 16.9 --num-shards 4 --copies 1 -- --config configs/v100x4.yaml

A step of each stage runs on fake tensors, which have sizes and no data, and every storage is counted from its birth to
its end: parameters, gradients, momentum, what the backward pass needs, and the peak. It takes seconds, whatever the
batch. Within 2 % of torch's own allocations on a CPU (tests/suite/test_forecast.py). What a GPU needs beside them is
RESERVED_BYTES: an estimate, as no GPU has been measured yet.
"""

import contextlib
import dataclasses
import functools
import math
import shutil
import sys
import weakref
from typing import Literal

import torch
import tyro
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common.config import Config, load_config
from benchmarks.common.data import IMAGENET_CLASSES
from benchmarks.common.errors import UserError
from benchmarks.common.model import draw_model
from benchmarks.common.stages import find_cuts, stages_at, trace

RESERVED_BYTES = 1.5e9  # CUDA's context and cuDNN's workspaces (about 1 GB), NCCL's buffers, blocks rounded up
PREFETCHED = 2  # batches that each worker of a torch DataLoader has ready
SHM = "/dev/shm"


@dataclasses.dataclass(frozen=True)
class Split:
    """How a strategy divides a step, in numbers.

    num_shards: parts of the global batch on different devices. num_stages: parts of the model on different devices.
    num_microbatches: parts of a shard, of which the activations of in_flight (0: all) wait for their backward pass;
    with 1F1B a stage has as many waiting as there are stages from it on. copies: of the gradients, such as DDP's
    buckets. whole_batch: the images of all shards arrive on the first device. evaluates: images of an evaluation's
    batch that meet the whole model on one device (0: no more than in training). readers: loaders on this machine, and
    reader_workers the processes of each. autocast: what convolutions compute in, and keep.
    """

    num_shards: int = 1
    num_stages: int = 1
    num_microbatches: int = 1
    one_f_one_b: bool = False
    copies: int = 0
    whole_batch: bool = False
    evaluates: int = 0
    readers: int = 1
    reader_workers: int = 0
    autocast: torch.dtype | None = None


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes on one device. peak is the most at one time; the others are parts of it, though not all at that time."""

    parameters: int
    gradients: int
    momentum: int
    activations: int
    peak: int


class Tally(TorchDispatchMode):
    """Bytes of the storages that operations make while it lasts: those alive now, and the most at one time."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor.untyped_storage())
        return made

    def add(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self.alive:  # a view, or an operation in place
            return

        def ended(_):
            del self.alive[key]
            self.now -= num_bytes

        self.alive[key] = weakref.ref(storage, ended)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)


def forecast(config: Config, split: Split, num_classes: int = IMAGENET_CLASSES) -> list[Need]:
    """What the device of each stage needs for a step. Raises UserError for a cut that the model does not have."""
    num_images = config.global_batch // split.num_shards
    with torch.device("meta"):
        plan = draw_model(config, num_classes)
    cuts = find_cuts(config, plan, split.num_stages) if split.num_stages > 1 else []
    shapes = [(3, config.image_size, config.image_size)]
    shapes += [shape for _, shape in trace(stages_at(plan, cuts)[:-1], config.image_size)]
    with FakeTensorMode() as fake:
        net = draw_model(config, num_classes)
    stages = stages_at(net, cuts)
    needs = []
    for number, (stage, shape) in enumerate(zip(stages, shapes, strict=True)):
        waiting = split.num_microbatches
        if split.one_f_one_b:
            waiting = min(waiting, split.num_stages - number)
        with fake:
            images = torch.empty(num_images // split.num_microbatches, *shape, requires_grad=number > 0)
            need = _need(config, split, stage, images, waiting, stage is stages[-1])
        if number == 0 and split.whole_batch:
            images = 4 * (config.global_batch - num_images) * 3 * config.image_size**2
            need = dataclasses.replace(need, peak=need.peak + images)
        if split.evaluates:
            with fake:
                whole = _evaluation_peak(net, config, split.evaluates) + 2 * need.parameters
            need = dataclasses.replace(need, peak=max(need.peak, whole))
        needs.append(need)
    return needs


def _need(config, split, stage: nn.Module, images: torch.Tensor, waiting: int, last: bool) -> Need:
    """One micro-batch through a stage, forwards and back, and the sum for as many as wait."""
    parameters = _num_bytes(stage.parameters())
    momentum = parameters if config.momentum else 0
    autocast = torch.autocast("cpu", split.autocast) if split.autocast else contextlib.nullcontext()
    with Tally() as tally:
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
    # The update keeps gradients with the weight decay in them beside the gradients.
    peak = max(tally.peak + (waiting - 1) * activations, before + 2 * parameters + images.nbytes)
    return Need(parameters, parameters, momentum, waiting * activations, peak + momentum + split.copies * parameters)


def _evaluation_peak(net: nn.Module, config: Config, num_images: int) -> int:
    with Tally() as tally, torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tally.add(tensor.untyped_storage())
        net.eval()(torch.empty(num_images, 3, config.image_size, config.image_size))
        net.train()
    return tally.peak


def _num_bytes(tensors) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def shm_bytes(config: Config, split: Split) -> int:
    """What the loaders of this machine keep in shared memory: uint8 images that wait for the training processes."""
    if config.loader == "synthetic":
        return 0
    images = config.global_batch // (1 if split.whole_batch else split.num_shards)
    return split.readers * split.reader_workers * PREFETCHED * images * 3 * config.image_size**2


def refusal(config: Config, split: Split, memory_bytes: float, shm_free_bytes: float) -> str:
    """Why the run would end for lack of memory, and what fits; empty where all fits."""
    need = _peak(config, split)
    if need + RESERVED_BYTES > memory_bytes:
        return (
            f"needs {need / 1e9:.1f} GB on one device, of {memory_bytes / 1e9:.1f} less {RESERVED_BYTES / 1e9:.1f} for "
            f"CUDA itself; {remedy(config, split, memory_bytes - RESERVED_BYTES)}"
        )
    shared = shm_bytes(config, split)
    if shared > shm_free_bytes:
        fit = int(config.workers * shm_free_bytes / shared)
        return (
            f"the loaders need {shared / 1e9:.1f} GB of shared memory, and {SHM} has {shm_free_bytes / 1e9:.1f}; "
            f"enlarge it (docker run --shm-size), or use --workers {fit}"
        )
    return ""


def remedy(config: Config, split: Split, limit_bytes: float) -> str:
    """The largest global batch that fits in limit_bytes, and the micro-batches with which this one would."""
    batch = largest_batch(config, split, limit_bytes)
    words = f"the largest batch that fits is --global-batch {batch}" if batch else "no batch fits"
    shard = config.global_batch // split.num_shards
    if split.num_stages > 1 and split.num_microbatches > 1:
        for micro in range(split.num_microbatches + 1, shard + 1):
            finer = dataclasses.replace(split, num_microbatches=micro, one_f_one_b=True)
            if shard % micro == 0 and _peak(config, finer) <= limit_bytes:
                words += f"; or --microbatches {micro} --pipeline-schedule 1f1b"
                break
    return words


def largest_batch(config: Config, split: Split, limit_bytes: float) -> int:
    """The largest global batch, divisible as the split needs it, whose step fits in limit_bytes; 0: none does."""
    unit = split.num_shards * split.num_microbatches

    def peak(units: int) -> int:
        evaluates = split.evaluates * units * unit // config.global_batch
        batch = dataclasses.replace(config, global_batch=units * unit)
        return _peak(batch, dataclasses.replace(split, evaluates=evaluates))

    units = most = config.global_batch // unit
    if units > 1:  # a straight line, but for batches of a few images
        slope = (peak(units) - peak(units // 2)) / (units - units // 2)
        units = min(units, max(1, units - math.ceil((peak(units) - limit_bytes) / slope)))
    while units and peak(units) > limit_bytes:
        units = units * 9 // 10
    while units and units < most and peak(units + 1) <= limit_bytes:
        units += 1
    return units * unit


@functools.cache
def _peak(config: Config, split: Split) -> int:
    return max(need.peak for need in forecast(config, split))


def shm_free_bytes() -> int:
    """Free bytes for shared memory on this machine."""
    return shutil.disk_usage(SHM).free


@dataclasses.dataclass(frozen=True)
class Options:
    memory_gb: float
    """Memory of one device, 10^9 bytes: a V100 has 16.9 or 34.1."""
    num_shards: int = 1
    """Parts of the global batch on different devices: the ranks of data parallel strategies."""
    num_stages: int = 1
    """Parts of the model on different devices."""
    num_microbatches: int = 1
    """Parts of a shard, one after the other."""
    one_f_one_b: bool = False
    """A stage keeps the activations of as many micro-batches as there are stages from it on."""
    copies: int = 0
    """Of the gradients: 1 with DDP's buckets."""
    whole_batch: bool = False
    """The images of all shards arrive on the first device."""
    autocast: Literal["none", "bf16", "fp16"] = "none"


def main(options: Options, config: Config) -> int:
    values = {name: value for name, value in vars(options).items() if name not in ("memory_gb", "autocast")}
    dtype = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[options.autocast]
    split = Split(**values, autocast=dtype, readers=options.num_shards, reader_workers=config.workers)
    for number, need in enumerate(forecast(config, split)):
        parts = {name: f"{num_bytes / 1e9:.2f}" for name, num_bytes in vars(need).items()}
        print(f"stage {number}: " + ", ".join(f"{name} {gigabytes} GB" for name, gigabytes in parts.items()))
    why_not = refusal(config, split, options.memory_gb * 1e9, float("inf"))
    print(f"/dev/shm {shm_bytes(config, split) / 1e9:.2f} GB; {why_not or 'fits'}")
    return int(bool(why_not))


if __name__ == "__main__":
    split_at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    try:
        options = tyro.cli(Options, args=sys.argv[1:split_at], description=__doc__)
        sys.exit(main(options, load_config(sys.argv[split_at + 1 :])))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
