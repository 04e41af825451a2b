"""Bring ImageNet, as it is had from hubs and from image-net.org, into folders or into packed files.

    ./bench data import FROM TO

FROM: a folder with Parquet files, WebDataset's tars, ILSVRC2012's tars and devkit, or a flat val folder. TO gets
train/<class>/ and val/<class>/, with the source's bytes, or with --pack packed files. All is written below
TO/.importing, and renamed when it is complete. After a kill the same command goes on.
"""

import contextlib
import errno
import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from benchmarks.common.machine import num_cores
from scripts.data.entries import Source, SourceShard
from scripts.data.find_source import find_source
from scripts.data.folder_target import FolderTarget
from scripts.data.journal import JOURNAL, WORKSHOP, Journal, Total
from scripts.data.progress import FreeBytes, Progress, free_bytes_of
from scripts.options.data_options import ImportOptions

if TYPE_CHECKING:
    from scripts.data.pack_target import PackTarget

    Target = FolderTarget | PackTarget

MAX_THREADS = 32
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def make_target(options: ImportOptions, source: Source) -> "Target":
    if options.pack is None:
        return FolderTarget(options.to, source)
    from scripts.data.pack_target import PackTarget  # imports pandas and torch, which folders do not need

    return PackTarget(options.to, options.pack, source)


def main(options: ImportOptions, free_bytes: FreeBytes = free_bytes_of) -> int:
    """Import, and print what there is now. free_bytes: of the disk of a folder."""
    folder, workshop = options.to, options.to / WORKSHOP
    try:
        source = find_source(options.source, options.classes)
        target = make_target(options, source)
        if not workshop.exists():
            target.refuse_existing()
        workshop.mkdir(parents=True, exist_ok=True)
        with hold_lock(workshop / "lock", limit_s=0):
            totals = import_source(source, target, folder, free_bytes)
            remove_workshop(workshop)
    except TimeoutError:
        raise UserError(f"another import is writing {folder}; wait for it") from None
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {folder} is full; free space, and the same command goes on") from None
        raise UserError(
            f"cannot import {error.filename or options.source}: {error.strerror or error}; the same command goes on"
        ) from None
    target.report(totals)
    return 0


def remove_workshop(workshop: Path) -> None:
    """The journal goes last: after a kill before that, the same command ends what is left. Raises OSError."""
    for path in [*workshop.iterdir()]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != JOURNAL:
            path.unlink()
    shutil.rmtree(workshop)


def import_source(source: Source, target: "Target", folder: Path, free_bytes: FreeBytes) -> dict[str, Total]:
    """Write what is left of the source, check it, and put it into its place; returns the total of each split."""
    journal = Journal(folder / WORKSHOP / JOURNAL, target.kind)
    left = [shard for shard in source.shards if journal.total(shard) is None]
    if left:
        target.refuse_existing()
    num_bytes = sum(shard.num_bytes for shard in source.shards)
    done_bytes = num_bytes - sum(shard.num_bytes for shard in left)
    print(f"{source.kind}: {len(source.shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if journal.goes_on:
        print(f"going on after {len(source.shards) - len(left)} shards", flush=True)
        target.go_on([shard for shard in source.shards if journal.total(shard) is not None])
    progress = Progress(folder, num_bytes, done_bytes, target.written_per_byte, free_bytes)
    with contextlib.closing(journal), contextlib.closing(progress):
        if left:
            progress.check_disk()
            write_shards(left, target, journal, progress)
    totals = {split: Total() for split in sorted({shard.split for shard in source.shards})}
    for shard in source.shards:
        totals[shard.split] = totals[shard.split].plus(journal.total(shard) or Total())
    target.put_in_place(totals)
    return totals


def write_shards(shards: list[SourceShard], target: "Target", journal: Journal, progress: Progress) -> None:
    """Write the images of all shards, several shards at once; each finished one is noted."""
    num_threads = min(MAX_THREADS, num_cores(), len(shards))
    with ThreadPoolExecutor(num_threads) as pool:
        waiting = {pool.submit(target.write_shard, shard, progress): shard for shard in shards}
        try:
            for finished in as_completed(waiting):
                journal.add(waiting[finished], finished.result())
        except BaseException:
            progress.cancel()
            pool.shutdown(cancel_futures=True)
            raise
