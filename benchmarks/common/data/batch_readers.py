"""Batches of uint8 images: read by this process, by threads of it, or by processes, a few batches ahead.

They lie in memory that is used again and again: for a batch in new pages, the kernel takes almost as long to give
them out as packed pixels take to be cropped. Processes share it by fork; it is no file in /dev/shm, which may be small.
To a GPU they go as they are, a quarter of the bytes of floats.
"""

import collections
import functools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch.utils.data import DataLoader

from benchmarks.common.config.config import Config
from benchmarks.common.data.decode import ON_GPU, resolved_decoder
from benchmarks.common.data.image_dataset import Key, Photographs, Told
from benchmarks.common.dist.devices import RankContext

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # what asks a rank for a checkpoint
AHEAD = 2  # batches that each loader worker has ready, as torch's DataLoader has it
LONG = 10  # as many batches in a slot are many
IN_USE = 2  # the batch that was taken last, and the one before


class Batch(NamedTuple):
    """uint8 NCHW images (channels last in memory) and int64 targets, here or on their way to a GPU."""

    images: torch.Tensor
    target: torch.Tensor
    problems: Sequence[str] = ()
    """Of the unreadable."""
    num_by_pillow: int = 0
    copied: torch.cuda.Event | None = None
    """Where both are on a GPU: when their copy is done."""


Ticket = tuple[int, list[Key]]
"""The slot that a batch goes to, and what is in it."""


class HostBatches:
    """Iterate for a pass over `batches`. A Batch keeps its pixels until the next but one is asked for, or the end."""

    def __init__(self, config: Config, context: RankContext, images: Photographs, batches):
        workers = config.workers
        self.slots = Slots(images, AHEAD * workers + IN_USE, -(-batches.global_batch // batches.num_shards))
        tickets = Tickets(batches, len(self.slots.pixels))
        self.start: Callable[[], Iterator[tuple[int, Told]]]
        if not workers:
            self.start = lambda: map(self.slots.fill, tickets)
        elif resolved_decoder(config) == ON_GPU:  # CUDA does not survive a fork
            self.start = functools.partial(in_threads, self.slots.fill, tickets, workers, context.device)
        else:
            self.start = functools.partial(iter, in_processes(config, self.slots, tickets))
        self.batches, self.device, self.prefetch = batches, context.device, config.prefetch

    def __iter__(self) -> Iterator[Batch]:
        batches = map(self.slots.batch, self.start())
        try:
            yield from ahead(batches, self.device, self.prefetch) if self.device.type == "cuda" else batches
        finally:  # training takes as many as there are, and does not ask for one more
            if len(self.batches) > LONG * len(self.slots.pixels):
                self.slots.give_back()


class Slots:
    """Room for `number` batches of num_images, which forked processes share. As a dataset, its items are tickets'."""

    def __init__(self, images: Photographs, number: int, num_images: int):
        self.images, shape = images, (number, num_images, images.size, images.size, 3)
        self.memory = mmap.mmap(-1, max(1, torch.Size(shape).numel()))
        self.pixels = torch.frombuffer(self.memory, dtype=torch.uint8)[: torch.Size(shape).numel()].view(shape)

    def fill(self, ticket: Ticket) -> tuple[int, Told]:
        slot, keys = ticket
        return slot, self.images.read_into(self.pixels[slot], keys)

    __getitems__ = fill  # what DataLoader asks a dataset for a batch

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, filled: tuple[int, Told]) -> Batch:
        slot, (targets, *rest) = filled
        return Batch(self.pixels[slot][: len(targets)].permute(0, 3, 1, 2), torch.tensor(targets), *rest)

    def give_back(self) -> None:
        """Return the pages to the kernel: after a long pass they will be idle for long, as training's in validation."""
        self.memory.madvise(mmap.MADV_REMOVE)


class Tickets:
    """Each batch goes to the slot after its predecessor's, round and round."""

    def __init__(self, batches: Iterable[list[Key]], num_slots: int):
        self.batches, self.num_slots = batches, num_slots

    def __iter__(self) -> Iterator[Ticket]:
        return ((number % self.num_slots, keys) for number, keys in enumerate(self.batches))


def threads_for(device: torch.device, number: int) -> ThreadPoolExecutor:
    """Threads that know the rank's GPU: one that was told of none would set up the first, on every rank."""
    told = {"initializer": torch.cuda.set_device, "initargs": (device,)} if device.type == "cuda" else {}
    return ThreadPoolExecutor(number, **told)


def in_threads(fill: Callable, tickets: Iterable[Ticket], number: int, device) -> Iterator[tuple[int, Told]]:
    pool, waiting = threads_for(device, number), collections.deque[Future]()
    try:
        for ticket in tickets:
            waiting.append(pool.submit(fill, ticket))
            if len(waiting) > AHEAD * number:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def in_processes(config: Config, slots: Slots, tickets: Tickets) -> DataLoader:
    return DataLoader(
        slots,
        batch_sampler=tickets,
        collate_fn=_as_it_is,
        num_workers=config.workers,
        multiprocessing_context="fork",  # Python 3.14 would start them without the slots
        prefetch_factor=AHEAD,
        timeout=config.timeout_s,
        persistent_workers=True,
        generator=torch.Generator(),  # else it draws its workers' seeds from the generator of training
        worker_init_fn=_outlive_stop if config.checkpoint_dir else None,
    )


def ahead(batches: Iterator[Batch], device: torch.device, prefetch: int) -> Iterator[Batch]:
    """Batches for a GPU, which a thread pins and copies while it computes: as many as `prefetch` before they are asked
    for, on a stream of their own. 0: the thread only pins the next one, which the step copies then."""
    stream = stream_of_copies(device) if prefetch else None

    def bring() -> Batch | None:
        if (batch := next(batches, None)) is None:
            return None
        batch = batch._replace(images=batch.images.pin_memory(), target=batch.target.pin_memory())
        if stream is None:
            return batch
        with torch.cuda.stream(stream):
            images, target = (tensor.to(device, non_blocking=True) for tensor in (batch.images, batch.target))
            return batch._replace(images=images, target=target, copied=stream.record_event())

    with threads_for(device, 1) as thread:
        coming = collections.deque(thread.submit(bring) for _ in range(max(1, prefetch)))
        while (batch := coming.popleft().result()) is not None:
            coming.append(thread.submit(bring))
            yield batch


@functools.cache
def stream_of_copies(device: torch.device) -> torch.cuda.Stream:
    """One for all passes of all loaders: torch keeps the memory of each stream for that stream."""
    return torch.cuda.Stream(device)


def arrived(batch: Batch, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and targets on the device. It waits there for a copy that is under way; the host does not."""
    images, target = batch.images, batch.target
    if batch.copied is not None:
        here = torch.cuda.current_stream(device)
        here.wait_event(batch.copied)
        for tensor in (images, target):
            tensor.record_stream(here)  # else a later copy could get the memory that this stream still reads
    return images.to(device, non_blocking=True), target.to(device, non_blocking=True)


def _as_it_is(filled: tuple[int, Told]) -> tuple[int, Told]:
    return filled


def _outlive_stop(worker_id: int) -> None:
    """A signal reaches the loader's workers, too; without them the rank would fail before its checkpoint."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
