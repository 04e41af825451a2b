"""The way from a source to a target, which import and pack share: several shards at once, all in its place at the end.

A journal says what is finished: its first line the kinds of source and target, each further line a finished shard.
"""

import contextlib
import errno
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, write_text_atomically
from benchmarks.common.machine import num_cores
from scripts.data.entries import Count, Entry, Shard, Source, refuse
from scripts.data.folder_target import FolderTarget

if TYPE_CHECKING:
    from scripts.data.pack_target import PackTarget

    Target = FolderTarget | PackTarget

MAX_THREADS = 32
RESERVE_BYTES = 1 << 26  # that stay free: images end in blocks that they do not fill
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
Finished = dict[str, Count]
"""By the shard's key."""


class Cancelled(Exception):
    """Another thread has failed."""


def write_source(source: Source, target: "Target") -> dict[str, Count]:
    """What is left of it, all put into place; returns the count of each split. Raises UserError and OSError."""
    workshop = target.workshop
    if not workshop.exists():
        target.refuse_existing()
    workshop.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(workshop / "lock", limit_s=0):
            finished = _write_shards(source, target)
            counts = {split: Count() for split in sorted({shard.split for shard in source.shards})}
            for shard in source.shards:
                counts[shard.split].add(finished[_key(shard)])
            target.put_in_place(counts)
            shutil.rmtree(workshop)
            return counts
    except TimeoutError:
        raise UserError(f"another process is writing {workshop.parent}; wait for it") from None


def _write_shards(source: Source, target: "Target") -> Finished:
    journal = target.workshop / "journal"
    begun, finished = read_journal(journal)
    if begun not in ("", target.kind):
        raise UserError(f"{target.workshop} is of {begun}, and was stopped; remove it, or give another folder")
    left = [shard for shard in source.shards if _key(shard) not in finished]
    num_bytes, left_bytes = (sum(shard.num_bytes for shard in shards) for shards in (source.shards, left))
    print(f"{source.kind}: {len(source.shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if begun:
        done = [shard for shard in source.shards if _key(shard) in finished]
        print(f"going on after {len(done)} shards", flush=True)
        target.go_on([(shard, finished[_key(shard)]) for shard in done])
    check_disk(target.workshop, left_bytes * target.written_per_byte)
    lines = [json.dumps(target.kind), *(_line(key, count) for key, count in finished.items()), ""]
    write_text_atomically(journal, "\n".join(lines))  # without a line that was cut off
    bar = tqdm(
        desc="importing", total=num_bytes, initial=num_bytes - left_bytes, unit="B", unit_scale=True, disable=None
    )
    failed = threading.Event()

    def write(shard: Shard) -> Count:
        count = Count()
        target.write_shard(shard, images_of(shard, count, bar, failed), count)
        return count

    num_threads = max(1, min(MAX_THREADS, num_cores(), len(left)))
    with bar, open(journal, "a") as notes, ThreadPoolExecutor(num_threads) as pool:
        waiting = {pool.submit(write, shard): _key(shard) for shard in left}
        try:
            for written in as_completed(waiting):
                key = waiting[written]
                finished[key] = written.result()
                notes.write(_line(key, finished[key]) + "\n")
                notes.flush()
        except BaseException:
            failed.set()
            pool.shutdown(cancel_futures=True)
            raise
    return finished


def images_of(shard: Shard, count: Count, bar: tqdm, failed: threading.Event) -> Iterator[Entry]:
    """All its entries are counted in `count`. Raises UserError for refused entries and a shard without an image, and
    Cancelled."""
    refused = []
    for entry in shard.read():
        if failed.is_set():
            raise Cancelled
        if entry.refused:
            refused.append(entry)
        elif entry.left_out:
            count.left_out[entry.left_out] += 1
        else:
            count.num_images += 1
            count.num_bytes += len(entry.content)
            bar.update(len(entry.content))
            yield entry
    refuse(refused, shard.name)
    if not count.num_images:
        raise UserError(f"{shard.name} has no image; is the download whole?")
    bar.update(shard.num_bytes - count.num_bytes)  # what is in a shard beside its images


def check_disk(folder: Path, num_bytes: float) -> None:
    free, needed = shutil.disk_usage(folder).free, num_bytes + RESERVE_BYTES
    if free < needed:
        raise UserError(
            f"{needed / 1e9:.2f} GB are needed in {folder}, and {free / 1e9:.2f} GB are free; "
            "free space, and the same command goes on"
        )


def read_journal(path: Path) -> tuple[str, Finished]:
    """Nothing where there is none."""
    kind, found = "", {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        first, *lines = path.read_text().split("\n")
        kind = str(json.loads(first))
        for line in lines[:-1]:  # the last line may have been cut off
            key, count = json.loads(line)
            found[key] = Count(**count)
    return kind, found


def _key(shard: Shard) -> str:
    return json.dumps([shard.name, shard.num_bytes, shard.time_ns])


def _line(key: str, count: Count) -> str:
    return json.dumps([key, vars(count)])


@contextlib.contextmanager
def disk_errors(source: Path, folder: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError into a UserError with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {folder} is full; free space, and the same command goes on") from None
        raise UserError(f"cannot use {error.filename or source}: {error.strerror or error}; {remedy}") from None
