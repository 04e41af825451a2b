"""Images in, batches on the device out, the same global batches for every strategy and any number of ranks.

sharding.py says which image is in which batch of which rank.
"""

import collections
import contextlib
import dataclasses
import errno
import functools
import itertools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from benchmarks.common import machine, packed
from benchmarks.common.config import IMAGENET_TRAIN_IMAGES, NUM_IN_USE, PREFETCHED_PER_WORKER, Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import (
    GPU_DECODER,
    MAX_REPLACEMENT_TRIES,
    FolderSource,
    ImageDataset,
    ImageKey,
    ReadResult,
    decoder_version,
    open_decoder,
    packed_pixels_decoder,
    resolve_decoder,
)
from benchmarks.common.listing import TRUNCATED_FILE_HELP
from benchmarks.common.rank import STOP_SIGNALS, AllReduce, RankContext


@dataclasses.dataclass(frozen=True)
class Shard:
    """Part `index`, from 0 on, of the `num_shards` equal parts of every global batch.

    num_devices: that compute on its images. Who reads it gets the loader workers that as many ranks would have.
    """

    index: int = 0
    num_shards: int = 1
    num_devices: int = 1


WHOLE_BATCH = Shard()


@dataclasses.dataclass(frozen=True)
class Sharding:
    """Which images one rank reads, in training and in validation.

    reads_train_images: False on a rank that gets activations and targets from another.
    """

    train: Shard = dataclasses.field(default_factory=Shard)
    val: Shard = dataclasses.field(default_factory=Shard)
    reads_train_images: bool = True


class GlobalBatchSampler:
    """One shard's part of every global batch of an epoch, as lists of (epoch, position, index).

    shuffle: an epoch has `num_steps` whole batches, taken from one permutation of the images after the other. Without
    shuffle every image comes exactly once: the last batch holds the rest, and some shards may have no part in it.
    """

    def __init__(
        self,
        num_images: int,
        global_batch: int,
        num_steps: int,
        shard: Shard = WHOLE_BATCH,
        shuffle: bool = True,
        seed: int = 0,
    ):
        self.num_images, self.global_batch, self.num_steps = num_images, global_batch, num_steps
        self.shard, self.num_shards, self.shuffle, self.seed = shard, shard.num_shards, shuffle, seed
        self.epoch = self.start_step = 0

    def __len__(self) -> int:
        return self.num_steps - self.start_step

    def order(self) -> torch.Tensor:
        """Image indices of the epoch, int64, by position."""
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
            index = self.shard.index
            first = index * per_shard + min(index, extra)
            of_shard = positions[first : first + per_shard + (index < extra)]
            if of_shard:
                indices = order[of_shard.start : of_shard.stop].tolist()
                yield [(self.epoch, position, image) for position, image in zip(of_shard, indices, strict=True)]


LONG_PASS = 10  # batches for each buffer


class Batch(NamedTuple):
    """uint8 NCHW images (channels last in memory) and int64 targets, on the host or on their way to a GPU."""

    images: torch.Tensor
    target: torch.Tensor
    problems: Sequence[str] = ()
    """A message for each image that could not be read."""
    num_by_pillow: int = 0
    copied: torch.cuda.Event | None = None
    """Where both tensors are on a GPU: the event after their copy."""


class PartIndex(NamedTuple):
    """A part of a batch, for a worker: the batch's buffer, the place of the part's first image there, its images, and
    whether it is the batch's last."""

    buffer: int
    first: int
    keys: list[ImageKey]
    is_last: bool


class FilledPart(NamedTuple):
    """What a worker returns: the part, and what is known of its images."""

    buffer: int
    first: int
    is_last: bool
    result: ReadResult


class BufferPool:
    """Memory for `num_buffers` batches of num_images, which forked processes share.

    As a DataLoader's dataset: its index is a PartIndex, its item a FilledPart.
    """

    def __init__(self, images: ImageDataset, num_buffers: int, num_images: int):
        self.images, shape = images, (num_buffers, num_images, images.size, images.size, 3)
        self.memory = mmap.mmap(-1, max(1, torch.Size(shape).numel()))
        self.pixels = torch.frombuffer(self.memory, dtype=torch.uint8)[: torch.Size(shape).numel()].view(shape)

    @property
    def num_buffers(self) -> int:
        return len(self.pixels)

    def read(self, index: PartIndex) -> FilledPart:
        places = self.pixels[index.buffer][index.first : index.first + len(index.keys)]
        return FilledPart(index.buffer, index.first, index.is_last, self.images.read_into(places, index.keys))

    __getitems__ = read  # what DataLoader asks a dataset for a batch

    def __len__(self) -> int:
        return len(self.images)

    def batches(self, parts: Iterator[FilledPart]) -> Iterator[Batch]:
        """The batches of parts, which come in order."""
        of_batch: list[FilledPart] = []
        for part in parts:
            of_batch.append(part)
            if part.is_last:
                yield self.batch(of_batch)
                of_batch = []

    def batch(self, parts: Sequence[FilledPart]) -> Batch:
        """The batch of all its parts. Pixels are copied only where an image could not be read."""
        results = [part.result for part in parts]
        targets = [target for result in results for target in result.targets]
        last = parts[-1]
        if last.first + len(last.result.targets) == len(targets):
            images = self.pixels[last.buffer][: len(targets)]
        else:
            read = [self.pixels[part.buffer][part.first :][: len(part.result.targets)] for part in parts]
            images = torch.cat(read)
        problems = [problem for result in results for problem in result.problems]
        num_by_pillow = sum(result.num_by_pillow for result in results)
        return Batch(images.permute(0, 3, 1, 2), torch.tensor(targets), problems, num_by_pillow)

    def release_pages(self) -> None:
        """Return the pages to the kernel, such as training's during validation."""
        self.memory.madvise(mmap.MADV_REMOVE)


class PartIndexSampler:
    """A PartIndex for each part of each batch of a pass. The buffers take turns.

    num_parts: of a batch, nearly equal; a batch with fewer images has a part for each.
    """

    def __init__(self, batches: Iterable[list[ImageKey]], num_buffers: int, num_parts: int):
        self.batches, self.num_buffers, self.num_parts = batches, num_buffers, num_parts

    def __iter__(self) -> Iterator[PartIndex]:
        for number, keys in enumerate(self.batches):
            num_parts = min(self.num_parts, len(keys))
            ends = [len(keys) * part // num_parts for part in range(num_parts + 1)]
            for first, end in itertools.pairwise(ends):
                yield PartIndex(number % self.num_buffers, first, keys[first:end], is_last=end == len(keys))


class HostLoader:
    """Iterate for a pass over the batches of `sampler`, one shard's. A Batch keeps its pixels until the next but one is
    requested.

    A worker reads the images of one device. So a process that loads for 8 devices is as few batches ahead as a rank
    that loads for one; else the end of an epoch would be timed without loading.
    """

    def __init__(self, config: Config, context: RankContext, images: ImageDataset, sampler: GlobalBatchSampler):
        num_workers = int(config.workers)  # of all devices; build_loaders has resolved `auto`
        num_images = -(-sampler.global_batch // sampler.num_shards)
        num_parts = min(sampler.shard.num_devices, num_images)
        num_ahead = -(-PREFETCHED_PER_WORKER * num_workers // num_parts)
        self.pool = BufferPool(images, num_ahead + NUM_IN_USE, num_images)
        indices = PartIndexSampler(sampler, self.pool.num_buffers, num_parts)
        self.start_reading: Callable[[], Iterator[FilledPart]]
        if not num_workers:
            self.start_reading = lambda: map(self.pool.read, indices)
        elif resolve_decoder(config) == GPU_DECODER:  # CUDA does not survive a fork
            self.start_reading = functools.partial(
                read_in_threads, self.pool.read, indices, num_workers, context.device
            )
        else:
            self.start_reading = functools.partial(iter, worker_processes(config, self.pool, indices))
        self.sampler: Sized = sampler
        self.device, self.num_prefetched = context.device, config.prefetch

    def __iter__(self) -> Iterator[Batch]:
        batches = self.pool.batches(self.start_reading())
        try:
            if self.device.type == "cuda":
                batches = prefetch_to_gpu(batches, self.device, self.num_prefetched)
            yield from batches
        finally:  # training takes as many as there are, and does not ask for one more
            if len(self.sampler) > LONG_PASS * self.pool.num_buffers:
                self.pool.release_pages()


def thread_pool(device: torch.device, num_threads: int) -> ThreadPoolExecutor:
    """Threads that use the rank's GPU. By default a new thread would set up the first GPU, on every rank."""
    if device.type == "cuda":
        return ThreadPoolExecutor(num_threads, initializer=torch.cuda.set_device, initargs=(device,))
    return ThreadPoolExecutor(num_threads)


def read_in_threads(
    read: Callable[[PartIndex], FilledPart],
    indices: Iterable[PartIndex],
    num_threads: int,
    device: torch.device,
) -> Iterator[FilledPart]:
    pool, pending = thread_pool(device, num_threads), collections.deque[Future[FilledPart]]()
    try:
        for index in indices:
            pending.append(pool.submit(read, index))
            if len(pending) > PREFETCHED_PER_WORKER * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def worker_processes(config: Config, pool: BufferPool, indices: PartIndexSampler) -> Iterable[FilledPart]:
    """A DataLoader whose workers write to the pool."""
    loader: DataLoader[Any] = DataLoader(
        pool,  # type: ignore[arg-type]  # torch types a dataset by its base class, and a batch's index as a list
        batch_sampler=indices,  # type: ignore[arg-type]
        collate_fn=_identity,
        num_workers=int(config.workers),
        multiprocessing_context="fork",  # Python 3.14 would start them without the buffers
        prefetch_factor=PREFETCHED_PER_WORKER,
        timeout=config.timeout_s,
        persistent_workers=True,
        generator=torch.Generator(),  # else it draws its workers' seeds from the generator of training
        worker_init_fn=_ignore_stop_signals if config.checkpoint_dir else None,
    )
    return loader


def prefetch_to_gpu(batches: Iterator[Batch], device: torch.device, num_batches: int) -> Iterator[Batch]:
    """Batches that a thread pins and copies to the GPU, on a stream of their own.

    num_batches: how many are copied before they are requested. 0: the step copies the next one.
    """
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

    with thread_pool(device, 1) as thread:
        pending = collections.deque(thread.submit(pin_and_copy) for _ in range(max(1, num_batches)))
        while (batch := pending.popleft().result()) is not None:
            pending.append(thread.submit(pin_and_copy))
            yield batch


@functools.cache
def loader_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all loaders: torch keeps the memory of each stream for that stream."""
    return torch.cuda.Stream(device)


def wait_for_copy(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets on the device. Its current stream waits for the copy; the host does not."""
    images, target = batch.images, batch.target
    if batch.copied is not None:
        stream = torch.cuda.current_stream(device)
        stream.wait_event(batch.copied)
        for tensor in (images, target):
            tensor.record_stream(stream)  # else a later copy could get the memory that this stream still reads
    return images.to(device, non_blocking=True), target.to(device, non_blocking=True)


def _identity(filled: Any) -> Any:
    return filled


def _ignore_stop_signals(worker_id: int) -> None:
    """Else a signal would end them before the rank's checkpoint."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


IMAGENET_MEAN = (0.485, 0.456, 0.406)  # as torchvision documents
IMAGENET_STD = (0.229, 0.224, 0.225)
IMAGENET_CLASSES = 1000
MEMORY_FORMATS = {
    "auto": torch.contiguous_format,  # where nobody resolved it; an unresolved precision computes in fp32, too
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}

Mark = Callable[[str], None]
"""Called at the end of a phase, with its name."""


class Loader:
    """Batches on the device: float32 NCHW images, normalised, and int64 targets.

    resolved: for the settings of the run, the value of each `auto` of the configuration.
    """

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
        self.classes, self.skip_bad_files = classes, config.skip_bad_files
        self.memory_format = MEMORY_FORMATS[config.memory_format]
        self.mean = torch.tensor(IMAGENET_MEAN, device=device).mul(255).view(1, 3, 1, 1)
        self.std = torch.tensor(IMAGENET_STD, device=device).mul(255).view(1, 3, 1, 1)
        self.shift, self.scale = -self.mean / self.std, 1 / self.std
        self.num_bad_files = self.num_by_pillow = 0

    @property
    def num_steps(self) -> int:
        """Steps of a whole epoch."""
        return self.sampler.num_steps

    def set_epoch(self, epoch: int, start_step: int = 0) -> None:
        """Choose the epoch, and so its order and augmentations, and the step to start from."""
        self.sampler.epoch, self.sampler.start_step = epoch, start_step

    def fetch(self, host_batches: Iterator[Batch]) -> Batch | None:
        """The next batch, or None at the end. For a GPU, its copy may be in progress.

        Raises UserError for an unreadable file, unless config.skip_bad_files.
        """
        with _explain_worker_failures():
            batch = next(host_batches, None)
        if batch is None:
            return None
        if batch.problems:
            if not self.skip_bad_files:
                raise UserError(f"{batch.problems[0]}; repair or remove the file, or use --skip-bad-files")
            if self.sampler.shuffle and len(batch.target) < self.sampler.global_batch // self.sampler.num_shards:
                raise UserError(
                    f"{batch.problems[0]}, nor are the {MAX_REPLACEMENT_TRIES - 1} after it; repair the data set"
                )
            self.num_bad_files += len(batch.problems)
        self.num_by_pillow += batch.num_by_pillow
        return batch

    def to_device(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Images and targets for a step. The device waits for the batch's copy, or copies it, and normalises it."""
        images, target = wait_for_copy(batch, self.device)
        return (self.normalised(images) if images.dtype == torch.uint8 else images), target

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        """(images - mean) / std as float32.

        On a GPU this is one kernel, which rounds once. On the CPU it is two, bit for bit as in the proof's reference.
        """
        if self.device.type == "cpu":
            return images.to(torch.float32, memory_format=self.memory_format).sub_(self.mean).div_(self.std)
        floats = torch.empty_like(images, dtype=torch.float32, memory_format=self.memory_format)
        return torch.addcmul(self.shift, images, self.scale, out=floats)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.with_marks(lambda phase: None)

    def with_marks(self, mark: Mark) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batches of an epoch. mark: called at the end of each phase, with its name: "data", waiting for a batch;
        "copy", its way to the device; and "other", all that comes before either."""
        with _explain_worker_failures():
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


class Loaders(NamedTuple):
    """The loaders of one rank."""

    train: Loader
    val: Loader


def count_bad_files(loaders: Sequence[Loader], device: torch.device, all_reduce: AllReduce) -> dict[str, int]:
    """Columns of a run's row, over all ranks: unreadable images, and images that Pillow had to decode."""
    counts = [[loader.num_bad_files, loader.num_by_pillow] for loader in loaders]
    total = all_reduce(torch.tensor(counts, dtype=torch.float64, device=device).sum(dim=0)).tolist()
    return dict(zip(("skipped_files", "num_by_pillow"), map(int, total), strict=True))


@contextlib.contextmanager
def _explain_worker_failures() -> Iterator[None]:
    """Say what to do where workers fail because memory or /dev/shm is full. Raises UserError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        if "Bus error" in f"{error} {error.__cause__}":  # torch's own text, which names the signal, may be the cause
            remedy = f"bus error: {TRUNCATED_FILE_HELP}"
        elif any(sign in str(error) for sign in ("killed by signal", "exited unexpectedly")):
            remedy = (
                "the kernel may have killed it for lack of memory (see dmesg): use fewer --workers or a smaller batch"
            )
        elif full or any(sign in str(error) for sign in ("shared memory", "DataLoader timed out")):
            remedy = (
                "/dev/shm may be full: enlarge it or use --workers 0; if only the files are slow, raise --timeout-s"
            )
        else:
            raise
        raise UserError(f"the loader's workers gave no batch ({str(error).splitlines()[0]}); {remedy}") from error


class SyntheticBatches:
    """One random batch, already on the device, repeated for each step of an epoch: training without input."""

    def __init__(self, config: Config, sampler: GlobalBatchSampler, device: torch.device):
        self.sampler = sampler
        size = (config.global_batch // sampler.num_shards, 3, config.image_size, config.image_size)
        random = torch.Generator().manual_seed(config.seed + sampler.shard.index)
        images = torch.randn(size, generator=random).contiguous(memory_format=MEMORY_FORMATS[config.memory_format])
        target = torch.randint(IMAGENET_CLASSES, size[:1], generator=random)
        self.batch = Batch(images.to(device), target.to(device))

    def __iter__(self) -> Iterator[Batch]:
        return itertools.repeat(self.batch, len(self.sampler))


def build_loaders(config: Config, context: RankContext, sharding: Sharding | None = None) -> Loaders:
    """The training and the validation Loader of one rank.

    sharding: default: a shard for each rank of the world. Ranks that hold parts of one model share a shard.
    Raises UserError where the batch does not divide or the data are unfit.
    """
    if sharding is None:
        of_rank = Shard(context.rank, context.world_size)
        sharding = Sharding(of_rank, of_rank)
    num_shards = sharding.train.num_shards
    if config.global_batch % num_shards:
        raise UserError(
            f"global_batch {config.global_batch} is not a multiple of {num_shards} ranks; change one of them"
        )
    if config.loader == "synthetic":
        return _synthetic_loaders(config, context, sharding)
    num_workers = machine.resolve_num_workers(config.workers, context.device.type == "cuda")
    decoder = resolve_decoder(config)
    resolved: dict[str, str | int] = {"decoder": decoder, "decoder_version": decoder_version(decoder)}
    resolved |= {"workers": num_workers}
    # one process that loads for several devices gets the workers that as many ranks would have
    train_config, val_config = (
        dataclasses.replace(config, workers=num_workers * shard.num_devices) for shard in (sharding.train, sharding.val)
    )
    train_set, val_set = open_datasets(config)
    train_sampler, val_sampler = _samplers(config, len(train_set), len(val_set), sharding)
    train_host: Iterable[Batch]
    if sharding.reads_train_images:
        train_host = HostLoader(train_config, context, train_set, train_sampler)
    else:
        train_host = _unread_batches(train_sampler, context.device)
    train = Loader(train_host, train_sampler, config, context.device, train_set.classes)
    val_host = HostLoader(val_config, context, val_set, val_sampler)
    val = Loader(val_host, val_sampler, config, context.device, train_set.classes)
    train.resolved = resolved
    return Loaders(train, val)


def _samplers(
    config: Config, num_train: int, num_val: int, sharding: Sharding
) -> tuple[GlobalBatchSampler, GlobalBatchSampler]:
    """The samplers of training and of validation, for data sets of these numbers of images."""
    global_batch, seed = config.global_batch, config.seed
    train_steps = config.steps or max(1, num_train // global_batch)
    val_steps = -(-num_val // global_batch)
    train = GlobalBatchSampler(num_train, global_batch, train_steps, sharding.train, seed=seed)
    val = GlobalBatchSampler(num_val, global_batch, val_steps, sharding.val, shuffle=False, seed=seed)
    return train, val


def _unread_batches(sampler: GlobalBatchSampler, device: torch.device) -> list[Batch]:
    """Batches without images, with targets on the device to receive into: the same ones for each step."""
    target = torch.zeros(sampler.global_batch // sampler.num_shards, dtype=torch.int64, device=device)
    return [Batch(torch.empty(0, device=device), target)] * sampler.num_steps


def _synthetic_loaders(config: Config, context: RankContext, sharding: Sharding) -> Loaders:
    """Training on one random batch, with an epoch of ImageNet's length, and no validation."""
    train_sampler, val_sampler = _samplers(config, IMAGENET_TRAIN_IMAGES, 0, sharding)
    classes = [str(number) for number in range(IMAGENET_CLASSES)]
    train_host: Iterable[Batch]
    if sharding.reads_train_images:
        train_host = SyntheticBatches(config, train_sampler, context.device)
    else:
        train_host = _unread_batches(train_sampler, context.device)
    train = Loader(train_host, train_sampler, config, context.device, classes)
    return Loaders(train, Loader([], val_sampler, config, context.device, classes))


def open_datasets(config: Config) -> tuple[ImageDataset, ImageDataset]:
    """train/ and val/ of config.data, as files or packed. Training has random crops and flips, validation centre crops.

    Raises UserError where the images cannot be read, or a requested decoder cannot be imported.
    """
    sources: Sequence[FolderSource | packed.PackedSource]
    if config.loader == "packed":
        sources = packed.open_packs(config)
    else:
        sources = [FolderSource(Path(config.data) / part) for part in ("train", "val")]
    name = resolve_decoder(config)
    opener = functools.partial(open_decoder, name) if name else packed_pixels_decoder
    train, val = (
        ImageDataset(source, opener, config.image_size, config.seed, sources[0].classes) for source in sources
    )
    train.replace_unreadable, train.augment = True, config.augment
    return train, val
