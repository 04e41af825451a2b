"""Batches of uint8 images, which are read some batches ahead: by this process, by its threads, or by worker processes.

The batches lie in memory that is used again and again. In newly allocated pages, the kernel would take almost as long
to provide the pages as packed pixels take to be cropped. Worker processes share the memory by fork. It is not a file in
/dev/shm, which may be small. A GPU gets the bytes, which are a quarter of the bytes of floats.
"""

import collections
import functools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from benchmarks.common.config.config import NUM_IN_USE, PREFETCHED_PER_WORKER, Config
from benchmarks.common.data.decode import GPU_DECODER, resolve_decoder
from benchmarks.common.data.image_dataset import ImageDataset, ImageKey, ReadResult
from benchmarks.common.data.sharding import GlobalBatchSampler
from benchmarks.common.dist.agreement import STOP_SIGNALS
from benchmarks.common.dist.devices import RankContext

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


class BatchIndex(NamedTuple):
    """What a worker gets: the number of the buffer to write to, and the images to read."""

    buffer: int
    keys: list[ImageKey]


class FilledBuffer(NamedTuple):
    """What a worker returns: the number of the buffer, and what is known of the images in it."""

    buffer: int
    result: ReadResult


class BufferPool:
    """Memory for `num_buffers` batches of num_images, which forked processes share.

    As a DataLoader's dataset: its index is a BatchIndex, its item a FilledBuffer.
    """

    def __init__(self, images: ImageDataset, num_buffers: int, num_images: int):
        self.images, shape = images, (num_buffers, num_images, images.size, images.size, 3)
        self.memory = mmap.mmap(-1, max(1, torch.Size(shape).numel()))
        self.pixels = torch.frombuffer(self.memory, dtype=torch.uint8)[: torch.Size(shape).numel()].view(shape)

    @property
    def num_buffers(self) -> int:
        return len(self.pixels)

    def read(self, index: BatchIndex) -> FilledBuffer:
        return FilledBuffer(index.buffer, self.images.read_into(self.pixels[index.buffer], index.keys))

    __getitems__ = read  # what DataLoader asks a dataset for a batch

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, filled: FilledBuffer) -> Batch:
        targets, problems, num_by_pillow = filled.result
        images = self.pixels[filled.buffer][: len(targets)].permute(0, 3, 1, 2)
        return Batch(images, torch.tensor(targets), problems, num_by_pillow)

    def release_pages(self) -> None:
        """Return the pages to the kernel. They would be idle for long, as training's are during validation."""
        self.memory.madvise(mmap.MADV_REMOVE)


class BatchIndexSampler:
    """A BatchIndex for each batch of a pass. The buffers take turns."""

    def __init__(self, batches: Iterable[list[ImageKey]], num_buffers: int):
        self.batches, self.num_buffers = batches, num_buffers

    def __iter__(self) -> Iterator[BatchIndex]:
        return (BatchIndex(number % self.num_buffers, keys) for number, keys in enumerate(self.batches))


class HostLoader:
    """Iterate for a pass over the batches of `sampler`, one shard's. A Batch keeps its pixels until the next but one is
    requested."""

    def __init__(self, config: Config, context: RankContext, images: ImageDataset, sampler: GlobalBatchSampler):
        num_workers = int(config.workers)  # build_loaders has resolved `auto`
        num_images = -(-sampler.global_batch // sampler.num_shards)
        self.pool = BufferPool(images, PREFETCHED_PER_WORKER * num_workers + NUM_IN_USE, num_images)
        indices = BatchIndexSampler(sampler, self.pool.num_buffers)
        self.start_reading: Callable[[], Iterator[FilledBuffer]]
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
        batches: Iterator[Batch] = map(self.pool.batch, self.start_reading())
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
    read: Callable[[BatchIndex], FilledBuffer],
    indices: Iterable[BatchIndex],
    num_threads: int,
    device: torch.device,
) -> Iterator[FilledBuffer]:
    pool, pending = thread_pool(device, num_threads), collections.deque[Future[FilledBuffer]]()
    try:
        for index in indices:
            pending.append(pool.submit(read, index))
            if len(pending) > PREFETCHED_PER_WORKER * num_threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def worker_processes(config: Config, pool: BufferPool, indices: BatchIndexSampler) -> Iterable[FilledBuffer]:
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
    """Batches that a thread pins and copies to the GPU while it computes, on a stream of their own.

    num_batches: how many are copied before they are requested. 0: the thread only pins the next one, and the step
    copies it.
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
    """One stream for all passes of all loaders: torch keeps the memory of each stream for that stream."""
    return torch.cuda.Stream(device)


def wait_for_copy(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets on the device. The device's current stream waits for a copy in progress; the host does not."""
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
    """A signal reaches the loader's workers, too. Without them the rank would fail before its checkpoint."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
