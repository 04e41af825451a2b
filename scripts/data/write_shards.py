"""Writes a source's images as files: TO/train/<class>/<image> and TO/val/<class>/<image>.

Several shards at once, below TO/.importing, and all in its place at the end.
"""

import collections
import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.machine import num_cores
from scripts.data.entries import Shard

MAX_THREADS = 32
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def write_source(shards: list[Shard], folder: Path) -> dict[str, int]:
    """All in its place; returns the number of images of each split. Raises UserError and OSError."""
    splits = sorted({shard.split for shard in shards})
    for path in (folder / split for split in splits):
        if path.exists():
            raise UserError(f"{path} is there already; remove it, or give another folder")
    with make_workshop(folder / ".importing") as workshop:
        num_images = _write_shards(shards, workshop)
        for split in splits:
            os.rename(workshop / split, folder / split)
    return num_images


@contextlib.contextmanager
def make_workshop(folder: Path) -> Iterator[Path]:
    """A folder for what is not finished, which goes at the end. Raises UserError where it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"another process is writing {folder}, or was killed; remove it if none is") from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _write_shards(shards: list[Shard], folder: Path) -> dict[str, int]:
    num_bytes, free = sum(shard.num_bytes for shard in shards), shutil.disk_usage(folder).free
    print(f"{len(shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if free < num_bytes:
        raise UserError(
            f"{num_bytes / 1e9:.2f} GB are needed in {folder}, and {free / 1e9:.2f} GB are free; free space"
        )
    num_images: collections.Counter[str] = collections.Counter()
    stopped = threading.Event()
    with (
        tqdm(desc="importing", total=num_bytes, unit="B", unit_scale=True, disable=None) as bar,
        ThreadPoolExecutor(min(MAX_THREADS, num_cores())) as pool,
    ):
        waiting = {pool.submit(_write_shard, shard, folder / shard.split, stopped): shard for shard in shards}
        try:
            for written in as_completed(waiting):
                num_images[waiting[written].split] += written.result()
                bar.update(waiting[written].num_bytes)
        except BaseException:
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return num_images


def _write_shard(shard: Shard, folder: Path, stopped: threading.Event) -> int:
    """Returns the number of images. Raises UserError where there is none, or one is there twice."""
    num_images = 0
    for image in shard.read():
        if stopped.is_set():
            return num_images
        path = folder / image.class_name / image.name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(path, "xb") as file:
                file.write(image.content)
        except FileExistsError:
            raise UserError(
                f"{shard.name}: {image.class_name}/{image.name} is there twice; remove the wrong one"
            ) from None
        num_images += 1
    if not num_images:
        raise UserError(f"{shard.name} has no image; is the download whole?")
    return num_images


@contextlib.contextmanager
def disk_errors(source: Path, folder: Path, remedy: str) -> Iterator[None]:
    """Turns an OSError into a UserError with the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {folder} is full; free space, and start again") from None
        raise UserError(f"cannot use {error.filename or source}: {error.strerror or error}; {remedy}") from None
