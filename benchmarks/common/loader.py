"""Images in, batches on the device out: the same global batches for every strategy and any number of ranks.

Workers read images into memory that they share with the rank; on a GPU a thread copies batches ahead of their steps.
"""

import collections
import dataclasses
import functools
import itertools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader

from benchmarks.common import machine
from benchmarks.common.config import IMAGENET_TRAIN_IMAGES, NUM_IN_USE, PREFETCHED_PER_WORKER, Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import (
    FolderSource,
    ImageDataset,
    ImageKey,
    ImageSource,
    decoder_version,
    open_decoder,
    resolve_decoder,
)
from benchmarks.common.rank import STOP_SIGNALS, Rank

IMAGENET_MEAN = (0.485, 0.456, 0.406)  # as torchvision documents
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000
MEMORY_FORMATS = {
    "auto": torch.contiguous_format,  # where nobody resolved it
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}

Mark = Callable[[str], None]
"""Called at the end of a phase."""


@dataclasses.dataclass
class GlobalBatchSampler:
    """One shard's part of every global batch of an epoch. shuffle: whole batches, of one permutation after the other.
    Without, every image comes once, and the last batch may be short or empty."""

    num_images: int
    global_batch: int
    num_steps: int
    shard: int = 0
    num_shards: int = 1
    shuffle: bool = True
    seed: int = 0
    epoch: int = 0
    start_step: int = 0

    def __len__(self) -> int:
        return self.num_steps - self.start_step

    @property
    def shard_images(self) -> int:
        """At most."""
        return -(-self.global_batch // self.num_shards)

    def order(self) -> torch.Tensor:
        """int64, by position."""
        if not self.shuffle:
            return torch.arange(self.num_images)
        num_positions = self.num_steps * self.global_batch
        num_permutations = -(-num_positions // self.num_images)
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        permutations = [torch.randperm(self.num_images, generator=generator) for _ in range(num_permutations)]
        return torch.cat(permutations)[:num_positions]

    def __iter__(self) -> Iterator[list[ImageKey]]:
        order = self.order()
        for step in range(self.start_step, self.num_steps):
            positions = range(step * self.global_batch, min((step + 1) * self.global_batch, len(order)))
            per_shard, extra = divmod(len(positions), self.num_shards)
            first = self.shard * per_shard + min(self.shard, extra)
            of_shard = positions[first : first + per_shard + (self.shard < extra)]
            if of_shard:
                indices = order[of_shard.start : of_shard.stop].tolist()
                yield [(self.epoch, position, image) for position, image in zip(of_shard, indices, strict=True)]


class Batch(NamedTuple):
    """uint8 NCHW images (channels last in memory) and int64 targets. copied: the event after their copy to a GPU."""

    images: torch.Tensor
    target: torch.Tensor
    copied: torch.cuda.Event | None = None


class Part(NamedTuple):
    """For a worker. first: the place of its first image in the batch's buffer."""

    buffer: int
    first: int
    keys: list[ImageKey]
    is_last: bool


class FilledPart(NamedTuple):
    """problem: of an unreadable image, or ''. A worker's exception would come with its stack."""

    part: Part
    targets: list[int]
    problem: str = ""


class PartSampler:
    """num_parts of each batch. The buffers take turns."""

    def __init__(self, batches: Iterable[list[ImageKey]], num_buffers: int, num_parts: int):
        self.batches, self.num_buffers, self.num_parts = batches, num_buffers, num_parts

    def __iter__(self) -> Iterator[Part]:
        for number, keys in enumerate(self.batches):
            num_parts = min(self.num_parts, len(keys))
            ends = [len(keys) * part // num_parts for part in range(num_parts + 1)]
            for first, end in itertools.pairwise(ends):
                yield Part(number % self.num_buffers, first, keys[first:end], is_last=end == len(keys))


class BufferPool:
    """Memory for num_buffers batches, which forked processes share. A DataLoader's dataset."""

    def __init__(self, images: ImageDataset, num_buffers: int, num_images: int):
        shape = torch.Size((num_buffers, num_images, images.size, images.size, 3))
        self.images = images
        self.pixels = torch.frombuffer(mmap.mmap(-1, shape.numel()), dtype=torch.uint8).view(shape)

    def read(self, part: Part) -> FilledPart:
        places = self.pixels[part.buffer][part.first : part.first + len(part.keys)]
        try:
            targets = self.images.read_into(places, part.keys)
            return FilledPart(part._replace(keys=[]), targets)
        except UserError as error:
            return FilledPart(part, [], str(error))

    __getitems__ = read  # which DataLoader calls

    def batches(self, parts: Iterator[FilledPart]) -> Iterator[Batch]:
        of_batch: list[FilledPart] = []
        for filled in parts:
            if filled.problem:
                raise UserError(filled.problem)
            of_batch.append(filled)
            if filled.part.is_last:
                targets = [target for each in of_batch for target in each.targets]
                images = self.pixels[filled.part.buffer][: len(targets)]
                yield Batch(images.permute(0, 3, 1, 2), torch.tensor(targets))
                of_batch = []


class HostLoader:
    """A Batch keeps its pixels until the next but one is requested. A worker reads for one device, so that a process
    which loads for 8 devices is as few batches ahead as a rank that loads for one."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        images: ImageDataset,
        sampler: GlobalBatchSampler,
        num_devices: int = 1,
    ):
        num_workers = int(config.workers) * num_devices
        num_parts = min(num_devices, sampler.shard_images)
        num_ahead = -(-PREFETCHED_PER_WORKER * num_workers // num_parts)
        self.device, self.num_prefetched = device, config.prefetch
        self.pool = BufferPool(images, num_ahead + NUM_IN_USE, sampler.shard_images)
        self.parts = PartSampler(sampler, num_ahead + NUM_IN_USE, num_parts)
        self.workers = worker_processes(config, num_workers, self.pool, self.parts) if num_workers else None

    def __iter__(self) -> Iterator[Batch]:
        parts = map(self.pool.read, self.parts) if self.workers is None else iter(self.workers)
        batches = self.pool.batches(parts)
        yield from (
            prefetch_to_gpu(batches, self.device, self.num_prefetched) if self.device.type == "cuda" else batches
        )


def worker_processes(
    config: Config, num_workers: int, pool: BufferPool, parts: PartSampler
) -> "DataLoader[FilledPart]":
    return DataLoader(
        pool,  # type: ignore[arg-type]
        batch_sampler=parts,  # type: ignore[arg-type]
        collate_fn=lambda filled: filled,
        num_workers=num_workers,
        multiprocessing_context="fork",  # else, from Python 3.14 on, without the buffers
        prefetch_factor=PREFETCHED_PER_WORKER,
        timeout=config.timeout_s,
        persistent_workers=True,
        generator=torch.Generator(),  # else it draws seeds from training's
        worker_init_fn=_ignore_stop_signals if config.checkpoint_dir else None,
    )


def _ignore_stop_signals(worker_id: int) -> None:
    """Which would end them before the rank's checkpoint."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def prefetch_to_gpu(batches: Iterator[Batch], device: torch.device, num_batches: int) -> Iterator[Batch]:
    """A thread pins batches, and copies them on a stream of their own, num_batches ahead; 0: the step copies."""
    stream = loader_stream(device) if num_batches else None

    def pin_and_copy() -> Batch | None:
        if (batch := next(batches, None)) is None:
            return None
        batch = batch._replace(images=batch.images.pin_memory(), target=batch.target.pin_memory())
        if stream is None:
            return batch
        with torch.cuda.stream(stream):
            images, target = (tensor.to(device, non_blocking=True) for tensor in (batch.images, batch.target))
            return batch._replace(images=images, target=target, copied=stream.record_event())

    with ThreadPoolExecutor(1, initializer=_set_up_thread, initargs=(device,)) as thread:
        pending = collections.deque(thread.submit(pin_and_copy) for _ in range(max(1, num_batches)))
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(pin_and_copy))
            yield batch


def _set_up_thread(device: torch.device) -> None:
    torch.cuda.set_device(device)  # else it would set up the first GPU, on every rank
    torch.set_num_threads(1)  # of this thread: pinning would start one on every core


@functools.cache
def loader_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all loaders: torch keeps memory by stream."""
    return torch.cuda.Stream(device)


class Loader:
    """Normalised NCHW images on the device, bfloat16 or float32, and int64 targets. resolved: what each `auto` came
    to."""

    def __init__(
        self,
        host_batches: Iterable[Batch],
        sampler: GlobalBatchSampler,
        config: Config,
        device: torch.device,
        classes: list[str],
    ):
        self.host_batches, self.sampler, self.device = host_batches, sampler, device
        self.resolved: dict[str, str | int] = {}
        self.classes = classes
        self.memory_format, self.dtype = MEMORY_FORMATS[config.memory_format], image_dtype(config)
        self.mean = torch.tensor(IMAGENET_MEAN, device=device).mul(255).view(1, 3, 1, 1)
        self.std = torch.tensor(IMAGENET_STD, device=device).mul(255).view(1, 3, 1, 1)
        self.shift, self.scale = -self.mean / self.std, 1 / self.std

    @property
    def num_steps(self) -> int:
        return self.sampler.num_steps

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def set_epoch(self, epoch: int, start_step: int = 0) -> None:
        self.sampler.epoch, self.sampler.start_step = epoch, start_step

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.with_marks(lambda phase: None)

    def with_marks(self, mark: Mark) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """mark gets "data", "copy", and "other", which comes before either."""
        host_batches = iter(self.host_batches)
        while True:
            mark("other")
            batch = self.fetch(host_batches)
            mark("data")
            if batch is None:
                return
            if len(batch.target):
                mark("other")
                on_device = self.to_device(batch)
                mark("copy")
                yield on_device

    def fetch(self, host_batches: Iterator[Batch]) -> Batch | None:
        """None at the end. Raises UserError for an unreadable image, and where the workers give no batch."""
        try:
            return next(host_batches, None)
        except RuntimeError as error:
            raise _explain_failure(error) from error

    def to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The host does not wait."""
        images, target = batch.images, batch.target
        if batch.copied is not None:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(batch.copied)
            for tensor in (images, target):
                tensor.record_stream(stream)  # else a later copy could get memory that this stream still reads
        images, target = (tensor.to(self.device, non_blocking=True) for tensor in (images, target))
        return (self.normalised(images) if images.dtype == torch.uint8 else images), target

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """In float32. On a GPU one kernel; on the CPU as the proof's reference, to the last bit."""
        if self.device.type == "cpu":
            floats = images.to(torch.float32, memory_format=self.memory_format).sub_(self.mean).div_(self.std)
            return floats.to(self.dtype)
        out = torch.empty_like(images, dtype=self.dtype, memory_format=self.memory_format)
        return torch.addcmul(self.shift, images, self.scale, out=out)


def image_dtype(config: Config) -> torch.dtype:
    return torch.bfloat16 if config.precision == "bf16" else torch.float32


def _explain_failure(error: RuntimeError) -> Exception:
    if not str(error).startswith("DataLoader"):
        return error
    remedy = "the kernel may have killed it for lack of memory (see dmesg): use fewer --workers or a smaller batch"
    if "timed out" in str(error):
        remedy = "raise --timeout-s if the files are slow"
    return UserError(f"the loader's workers gave no batch ({str(error).splitlines()[0]}); {remedy}")


class SyntheticBatches:
    """One random batch on the device."""

    def __init__(self, config: Config, sampler: GlobalBatchSampler, device: torch.device):
        self.sampler = sampler
        size = (sampler.shard_images, 3, config.image_size, config.image_size)
        random = torch.Generator().manual_seed(config.seed + sampler.shard)
        images = torch.randn(size, generator=random).contiguous(memory_format=MEMORY_FORMATS[config.memory_format])
        target = torch.randint(IMAGENET_CLASSES, size[:1], generator=random)
        self.batch = Batch(images.to(device, image_dtype(config)), target.to(device))

    def __iter__(self) -> Iterator[Batch]:
        return itertools.repeat(self.batch, len(self.sampler))


def build_loaders(config: Config, rank: Rank, only_rank0_reads: bool = False) -> tuple[Loader, Loader]:
    """Training and validation. Rank r of n reads part r of the n of each global batch. only_rank0_reads: rank 0 reads
    all training images, with the workers of all; others get targets to receive into. Raises UserError where the batch
    does not divide or the data are unfit."""
    own_shard = rank.rank, rank.world_size
    train_shard = (0, 1) if only_rank0_reads else own_shard
    if config.global_batch % train_shard[1]:
        raise UserError(
            f"global_batch {config.global_batch} is not a multiple of {rank.world_size} ranks; change one of them"
        )
    is_synthetic = config.loader == "synthetic"  # an epoch of ImageNet's length, and no validation
    num_train, num_val, classes = IMAGENET_TRAIN_IMAGES, 0, [str(number) for number in range(IMAGENET_CLASSES)]
    resolved: dict[str, str | int] = {}
    if not is_synthetic:
        config = dataclasses.replace(
            config, workers=machine.resolve_num_workers(config.workers, rank.device.type == "cuda")
        )
        decoder = resolve_decoder(config)
        resolved = {"decoder": decoder, "decoder_version": decoder_version(decoder), "workers": int(config.workers)}
        train_set, val_set = open_datasets(config)
        num_train, num_val, classes = len(train_set), len(val_set), train_set.classes
    num_steps = config.steps or max(1, num_train // config.global_batch)
    train_sampler = GlobalBatchSampler(num_train, config.global_batch, num_steps, *train_shard, seed=config.seed)
    num_val_steps = -(-num_val // config.global_batch)
    val_sampler = GlobalBatchSampler(num_val, config.global_batch, num_val_steps, *own_shard, shuffle=False)
    train_host: Iterable[Batch]
    val_host: Iterable[Batch] = []
    if only_rank0_reads and rank.rank:
        train_host = _unread_batches(train_sampler, rank.device)
    elif is_synthetic:
        train_host = SyntheticBatches(config, train_sampler, rank.device)
    else:
        num_devices = rank.world_size if only_rank0_reads else len(rank.devices)
        train_host = HostLoader(config, rank.device, train_set, train_sampler, num_devices)
    train = Loader(train_host, train_sampler, config, rank.device, classes)
    train.resolved = resolved
    if not is_synthetic:
        val_host = HostLoader(config, rank.device, val_set, val_sampler, len(rank.devices))
    return train, Loader(val_host, val_sampler, config, rank.device, classes)


def _unread_batches(sampler: GlobalBatchSampler, device: torch.device) -> list[Batch]:
    target = torch.zeros(sampler.shard_images, dtype=torch.int64, device=device)
    return [Batch(torch.empty(0, device=device), target)] * sampler.num_steps


def open_datasets(config: Config) -> tuple[ImageDataset, ImageDataset]:
    """train/ and val/, as files or packed. Validation has centre crops. Raises UserError."""
    sources: Sequence[ImageSource]
    if config.loader == "packed":
        from benchmarks.common.packed import open_packs

        sources = open_packs(config)
    else:
        sources = [FolderSource(Path(config.data) / part) for part in ("train", "val")]
    opener = functools.partial(open_decoder, resolve_decoder(config))
    train, val = (
        ImageDataset(source, opener, config.image_size, config.seed, sources[0].classes) for source in sources
    )
    train.augment = config.augment
    return train, val
