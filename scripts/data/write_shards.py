"""The way from a source to a target, which import and pack share: several shards at once, and all in its place at the
end.

A journal says what is finished, shard by shard, so that the same command goes on after a kill. Its first line says the
kinds of source and target, each further line is a finished shard. A shard whose file has changed is read again.
"""

import collections
import contextlib
import errno
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, write_text_atomically
from benchmarks.common.machine import num_cores
from scripts.data.entries import Count, Shard, Source
from scripts.data.folder_target import FolderTarget
from scripts.data.progress import FreeBytes, Progress, free_bytes_of

if TYPE_CHECKING:
    from scripts.data.pack_target import PackTarget

    Target = FolderTarget | PackTarget

JOURNAL = "journal"
MAX_THREADS = 32
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
Finished = dict[str, Count]
"""Of each finished shard, by its key."""


def write_source(source: Source, target: "Target", free_bytes: FreeBytes = free_bytes_of) -> dict[str, Count]:
    """Write what is left of the source, check it, and put it into its place; returns the count of each split.

    free_bytes: of the disk of a folder. Raises UserError, and OSError.
    """
    workshop = target.workshop
    if not workshop.exists():
        target.refuse_existing()
    workshop.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(workshop / "lock", limit_s=0):
            finished = _write_shards(source, target, free_bytes)
            counts = {split: Count() for split in sorted({shard.split for shard in source.shards})}
            for shard in source.shards:
                counts[shard.split].add(finished[_key(shard)])
            target.put_in_place(counts)
            remove_workshop(workshop)
            return counts
    except TimeoutError:
        raise UserError(f"another process is writing {workshop.parent}; wait for it") from None


def _write_shards(source: Source, target: "Target", free_bytes: FreeBytes) -> Finished:
    """Write what no earlier run has finished. Raises UserError where that was another kind of import."""
    journal = target.workshop / JOURNAL
    begun, finished = read_journal(journal)
    if begun not in ("", target.kind) and target.replaces:
        begun, finished = "", {}
    elif begun not in ("", target.kind):
        raise UserError(
            f"{target.workshop} is of an import from {begun}, which was stopped; remove it, or give another folder"
        )
    left = [shard for shard in source.shards if _key(shard) not in finished]
    if left:
        target.refuse_existing()
    num_bytes, left_bytes = (sum(shard.num_bytes for shard in shards) for shards in (source.shards, left))
    print(f"{source.kind}: {len(source.shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if begun:
        done = [shard for shard in source.shards if _key(shard) in finished]
        print(f"going on after {len(done)} shards", flush=True)
        target.go_on([(shard, finished[_key(shard)]) for shard in done])
    lines = [json.dumps(target.kind), *(_line(key, count) for key, count in finished.items()), ""]
    write_text_atomically(journal, "\n".join(lines))  # without a line that was cut off
    progress = Progress(target.workshop, num_bytes, num_bytes - left_bytes, target.written_per_byte, free_bytes)
    num_threads = max(1, min(MAX_THREADS, num_cores(), len(left)))
    with contextlib.closing(progress), open(journal, "a") as notes, ThreadPoolExecutor(num_threads) as pool:
        if left:
            progress.check_disk()
        waiting = {pool.submit(target.write_shard, shard, progress): _key(shard) for shard in left}
        try:
            for written in as_completed(waiting):
                key = waiting[written]
                finished[key] = written.result()
                notes.write(_line(key, finished[key]) + "\n")
                notes.flush()
        except BaseException:
            progress.cancel()
            pool.shutdown(cancel_futures=True)
            raise
    return finished


def read_journal(path: Path) -> tuple[str, Finished]:
    """The first line, and the finished shards; nothing where there is no journal that can be read."""
    kind, found = "", {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        first, *lines = path.read_text().split("\n")
        kind = str(json.loads(first))
        for line in lines[:-1]:  # the last line may have been cut off
            key, num_images, num_bytes, left_out, rows = json.loads(line)
            found[key] = Count(num_images, num_bytes, collections.Counter(left_out), rows)
    return kind, found


def _key(shard: Shard) -> str:
    return json.dumps([shard.name, shard.num_bytes, shard.time_ns])


def _line(key: str, count: Count) -> str:
    return json.dumps([key, count.num_images, count.num_bytes, count.left_out, count.rows])


def remove_workshop(workshop: Path) -> None:
    """The journal goes last: after a kill before that, the same command ends what is left. Raises OSError."""
    for path in [*workshop.iterdir()]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != JOURNAL:
            path.unlink()
    shutil.rmtree(workshop)


@contextlib.contextmanager
def disk_errors(source: Path, folder: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError into a UserError of one line, which ends in the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {folder} is full; free space, and the same command goes on") from None
        raise UserError(f"cannot use {error.filename or source}: {error.strerror or error}; {remedy}") from None
