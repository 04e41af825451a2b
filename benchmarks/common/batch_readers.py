"""Batches of uint8 images, which are read some batches ahead: by this process, by its threads, or by worker processes.

The batches lie in memory that is used again and again: new pages would cost almost as much as cropping packed pixels.
Worker processes share it by fork, not by /dev/shm, which may be small. A GPU gets bytes, a quarter of floats.
"""

import collections
import functools
import itertools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from benchmarks.common.config import NUM_IN_USE, PREFETCHED_PER_WORKER, Config
from benchmarks.common.decode import GPU_DECODER, resolve_decoder
from benchmarks.common.image_dataset import ImageDataset, ImageKey, ReadResult
from benchmarks.common.sharding import GlobalBatchSampler
from benchmarks.common.agreement import STOP_SIGNALS
from benchmarks.common.rank import RankContext

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
