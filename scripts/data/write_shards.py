"""Writes a source's images as files: TO/train/<class>/<image> and TO/val/<class>/<image>.

Several shards at once, below TO/.importing, and all in its place at the end. A journal there says what is finished: its
first line the kind of source, each further line a shard.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, write_text_atomically
from benchmarks.common.listing import format_names, list_images
from benchmarks.common.machine import num_cores
from scripts.data.entries import Count, Entry, Shard, Source, refuse

WORKSHOP = ".importing"
MAX_THREADS = 32
RESERVE_BYTES = 1 << 26  # that stay free: images end in blocks that they do not fill
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)
Finished = dict[str, Count]
"""By the shard's key."""


class Cancelled(Exception):
    """Another thread has failed."""


def write_source(source: Source, folder: Path) -> dict[str, Count]:
    """What is left of it, all put into place; returns the count of each split. Raises UserError and OSError."""
    splits = sorted({shard.split for shard in source.shards})
    if not (folder / WORKSHOP).exists():
        for path in (folder / split for split in splits):
            if path.exists():
                raise UserError(f"{path} is there already; remove it, or give another folder")
    with open_workshop(folder / WORKSHOP) as workshop:
        finished = _write_shards(source, workshop)
        counts = {split: Count() for split in splits}
        for shard in source.shards:
            counts[shard.split].add(finished[_key(shard)])
        put_in_place(folder, counts)
    return counts


@contextlib.contextmanager
def open_workshop(folder: Path) -> Iterator[Path]:
    """A folder for what is not finished, of this process alone, that goes at the end, unless that is an error. Raises
    UserError."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with hold_lock(folder / "lock", limit_s=0):
            yield folder
            shutil.rmtree(folder)
    except TimeoutError:
        raise UserError(f"another process is writing {folder.parent}; wait for it") from None


def _write_shards(source: Source, workshop: Path) -> Finished:
    journal = workshop / "journal"
    begun, lines = read_journal(journal)
    if begun not in (None, source.kind):
        raise UserError(f"{workshop} is of {begun}, and was stopped; remove it, or give another folder")
    finished = {key: Count(**count) for key, count in lines}
    left = [shard for shard in source.shards if _key(shard) not in finished]
    num_bytes, left_bytes = (sum(shard.num_bytes for shard in shards) for shards in (source.shards, left))
    print(f"{source.kind}: {len(source.shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if begun:
        print(f"going on after {len(source.shards) - len(left)} shards", flush=True)
    check_disk(workshop, left_bytes)
    write_journal(journal, [source.kind, *lines])
    bar = tqdm(
        desc="importing", total=num_bytes, initial=num_bytes - left_bytes, unit="B", unit_scale=True, disable=None
    )
    failed = threading.Event()
    make_folder = functools.cache(lambda folder: folder.mkdir(parents=True, exist_ok=True))

    def write(shard: Shard) -> Count:
        count = Count()
        for image in images_of(shard, count, bar, failed):
            folder = workshop / shard.split / image.class_name
            make_folder(folder)
            (folder / image.name).write_bytes(image.content)
        return count

    num_threads = max(1, min(MAX_THREADS, num_cores(), len(left)))
    with bar, open(journal, "a") as notes, ThreadPoolExecutor(num_threads) as pool:
        waiting = {pool.submit(write, shard): _key(shard) for shard in left}
        try:
            for written in as_completed(waiting):
                key = waiting[written]
                finished[key] = written.result()
                notes.write(json.dumps([key, vars(finished[key])]) + "\n")
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


def put_in_place(folder: Path, counts: dict[str, Count]) -> None:
    """Raises UserError where images have one name, or val has classes that train lacks."""
    made = {split: folder / WORKSHOP / split for split in counts}
    for split, count in counts.items():
        found = len(list_images(made[split] if made[split].is_dir() else folder / split))
        if found != count.num_images:
            raise UserError(
                f"{count.num_images} images of {split} were read, and they have {found} different names: "
                f"some are there twice; remove {folder / WORKSHOP} and the wrong ones"
            )
    places = {split: made.get(split, folder / split) for split in ("train", "val")}
    classes = {split: {*os.listdir(path)} for split, path in places.items() if path.is_dir()}
    if len(classes) == 2 and (unknown := classes["val"] - classes["train"]):
        raise UserError(f"val has classes that train lacks: {format_names(unknown)}; is train whole?")
    for split, path in made.items():
        if path.is_dir():  # else a kill came between two renames
            os.rename(path, folder / split)


def read_journal(path: Path) -> tuple[Any, list[Any]]:
    """The first line, and those after it, each of JSON, up to one that was cut off; None where there is none."""
    lines: list[Any] = []
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().split("\n")[:-1]:
            lines.append(json.loads(line))
    return (lines[0], lines[1:]) if lines else (None, [])


def write_journal(path: Path, lines: list[Any]) -> None:
    write_text_atomically(path, "".join(json.dumps(line) + "\n" for line in lines))


def _key(shard: Shard) -> str:
    return json.dumps([shard.name, shard.num_bytes, shard.time_ns])


@contextlib.contextmanager
def disk_errors(source: Path, folder: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError into a UserError with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {folder} is full; free space, and the same command goes on") from None
        raise UserError(f"cannot use {error.filename or source}: {error.strerror or error}; {remedy}") from None
