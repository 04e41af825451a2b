"""An import that is killed at a moment of its own, counted in calls that open, make, rename or remove something."""

import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from scripts.data_import import import_images
from scripts.data_import.source_images import Source, SourceImage, SourceShard
from scripts.options.data_options import ImportOptions

EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "shutil.rmtree")


def run_killed(options: ImportOptions, moment: int) -> tuple[int, int]:
    """Import in a fork that is killed before its moment-th call that changes something below TO; 0: never.

    Returns the fork's exit code, and how many of these calls come before the clean-up, which begins by removing a file
    or a folder.
    """
    calls = options.to.with_suffix(".calls")
    child = os.fork()
    if not child:
        counter, removals = itertools.count(1), []

        def look(event: str, words: tuple) -> None:
            if event in EVENTS and str(words[0]).startswith(f"{options.to}/"):
                number = next(counter)
                if number == moment:
                    os.kill(os.getpid(), signal.SIGKILL)
                if event in ("os.remove", "shutil.rmtree"):
                    removals.append(number)

        sys.addaudithook(look)
        code = 1
        try:
            code = import_images.main(options)
            calls.write_text(str(removals[0] - 1))
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), int(calls.read_text()) if calls.exists() else 0


@contextlib.contextmanager
def together(num_shards: int, then: Callable[[], None] | None = None) -> Iterator[None]:
    """Imports read this many shards at once: each of the first ones waits, after two images, for the others.

    then: called when all of them wait. Where fewer are read at once the import fails.
    """
    barrier = threading.Barrier(num_shards, then, timeout=60)
    find_source = import_images.find_source

    def wait_after_two(shard: SourceShard, is_first: bool) -> SourceShard:
        def read() -> Iterator[SourceImage]:
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
        patch.setattr(import_images, "num_cores", lambda: num_shards)
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
