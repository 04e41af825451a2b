"""Imports that read several shards at once, and one that is killed meanwhile."""

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from scripts.data import import_images, write_shards
from scripts.data.entries import Entry, Shard, Source
from scripts.options.data_options import ImportOptions


@contextlib.contextmanager
def together(num_shards: int, then: Callable[[], None] | None = None) -> Iterator[None]:
    """Imports read this many shards at once: each of the first ones waits, after two images, for the others.

    then: called when all of them wait. Where fewer are read at once the import fails.
    """
    barrier = threading.Barrier(num_shards, then, timeout=60)
    find_source = import_images.find_source

    def wait_after_two(shard: Shard, is_first: bool) -> Shard:
        def read() -> Iterator[Entry]:
            for number, image in enumerate(shard.read()):
                if number == 2 and is_first:
                    barrier.wait()
                yield image

        return dataclasses.replace(shard, read=read)

    def find(*words) -> Source:
        source = find_source(*words)
        shards = [wait_after_two(shard, number < num_shards) for number, shard in enumerate(source.shards)]
        return dataclasses.replace(source, shards=shards)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_images, "find_source", find)
        patch.setattr(write_shards, "num_cores", lambda: num_shards)
        yield


def kill_with_open_shards(options: ImportOptions, num_shards: int) -> int:
    """The exit code of an import in a fork, killed when two images of each of the first shards are written."""
    child = os.fork()
    if not child:
        with together(num_shards, lambda: os.kill(os.getpid(), signal.SIGKILL)):
            try:
                import_images.main(options)
            finally:
                os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
