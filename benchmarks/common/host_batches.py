"""Batches of uint8 images on the host: read by this process, by threads of it, or by processes, a few batches ahead.

They lie in memory that is used again and again: for a batch in new pages, the kernel takes almost as long to give
them out as packed pixels take to be cropped. Processes share it by fork; it is no file in /dev/shm, which may be small.
"""

import collections
import functools
import mmap
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader

from benchmarks.common.config import Config
from benchmarks.common.decode import resolved_decoder
from benchmarks.common.devices import Worker
from benchmarks.common.photographs import Key, Photographs, Told

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # what asks a rank for a checkpoint
AHEAD = 2  # batches that each loader worker has ready, as torch's DataLoader has it
LONG = 10  # as many batches in a slot are many
IN_USE = 2  # the batch that was taken last, and the one before

Batch = tuple[torch.Tensor, torch.Tensor, list[str], int]
"""uint8 NCHW images (channels last in memory), int64 targets, problems of the unreadable, how many Pillow read."""
Ticket = tuple[int, list[Key]]
"""The slot that a batch goes to, and what is in it."""


class HostBatches:
    """Iterate for a pass over `batches`. A Batch keeps its pixels until the next but one is asked for, or the end."""

    def __init__(self, config: Config, worker: Worker, images: Photographs, batches):
        workers = config.workers
        self.slots = Slots(images, AHEAD * workers + IN_USE, -(-batches.global_batch // batches.num_shards))
        tickets = Tickets(batches, len(self.slots.pixels))
        self.start: Callable[[], Iterator[tuple[int, Told]]]
        if not workers:
            self.start = lambda: map(self.slots.fill, tickets)
        elif not resolved_decoder(config):  # packed pixels: little holds Python's lock
            self.start = functools.partial(in_threads, self.slots.fill, tickets, workers)
        else:
            self.start = functools.partial(iter, in_processes(config, self.slots, tickets))
        self.batches, self.device = batches, worker.device

    def __iter__(self) -> Iterator[Batch]:
        batches = map(self.slots.batch, self.start())
        yield from pinned_ahead(batches, self.device) if self.device.type == "cuda" else batches
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
        return self.pixels[slot][: len(targets)].permute(0, 3, 1, 2), torch.tensor(targets), *rest

    def give_back(self) -> None:
        """Return the pages to the kernel: after a long pass they will be idle for long, as training's in validation."""
        self.memory.madvise(mmap.MADV_REMOVE)


class Tickets:
    """Each batch goes to the slot after its predecessor's, round and round."""

    def __init__(self, batches: Iterable[list[Key]], num_slots: int):
        self.batches, self.num_slots = batches, num_slots

    def __iter__(self) -> Iterator[Ticket]:
        return ((number % self.num_slots, keys) for number, keys in enumerate(self.batches))


def in_threads(fill: Callable, tickets: Iterable[Ticket], num_threads: int) -> Iterator[tuple[int, Told]]:
    pool, waiting = ThreadPoolExecutor(num_threads), collections.deque[Future]()
    try:
        for ticket in tickets:
            waiting.append(pool.submit(fill, ticket))
            if len(waiting) > AHEAD * num_threads:
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


def pinned_ahead(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Copies in page-locked memory, which a GPU takes while it computes: made by a thread, one batch ahead."""

    def take() -> Batch | None:
        images, *rest = next(batches, (None,))
        return None if images is None else (images.pin_memory(), *rest)

    # a thread that was told of no device would set up the first one, on every rank
    with ThreadPoolExecutor(1, initializer=torch.cuda.set_device, initargs=(device,)) as thread:
        coming = thread.submit(take)
        while (batch := coming.result()) is not None:
            coming = thread.submit(take)
            yield batch


def _as_it_is(filled: tuple[int, Told]) -> tuple[int, Told]:
    return filled


def _outlive_stop(worker_id: int) -> None:
    """A signal reaches the loader's workers, too; without them the rank would fail before its checkpoint."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
