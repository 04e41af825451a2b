"""A name for the images of a folder, wherever the folder is and whenever it was copied. It is part of a run's settings.

    >>> cached_fingerprint(Path("data/imagenet-mini"))
    '12-480-132-99ab6a71545deb75'

Classes, training images, validation images, and SHA-256 of all names and of the byte sizes of the first and the last
file of each class. It is the same on every machine. The plan takes it once; ranks do not. It does not see other bytes
in a file of the same size. Needs no torch.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.listing import LISTING_THREADS, ImageListing, cache_path, index_path, list_images
from benchmarks.common.rows import write_text_atomically

DIGITS = 16
Stats = dict[str, list[int]]
"""By a file's path: its size in bytes, and the modification times of its content and of its inode, in ns."""


def fingerprint(train: ImageListing, val: ImageListing) -> str:
    """Of the listings of <folder>/train/ and <folder>/val/. Raises OSError where a file of theirs is gone."""
    return _fingerprint_and_stats(train, val)[0]


def _fingerprint_and_stats(train: ImageListing, val: ImageListing) -> tuple[str, Stats]:
    """The fingerprint, and the files whose sizes are in it."""
    # cached_fingerprint may be called in another working folder next time
    roots = {images.folder: os.path.realpath(images.folder) for images in (train, val)}
    stats: Stats = {}

    def size_bytes(folder: Path, name: str) -> int:
        path = os.path.join(roots[folder], name)
        stats[path] = file_stat(path)
        return stats[path][0]

    return fingerprint_of(train, val, size_bytes), stats


def fingerprint_of(train: ImageListing, val: ImageListing, size_bytes: Callable[[Path, str], int]) -> str:
    """size_bytes(folder, name): of the image `name`, such as <class>/<image>, below the folder of a listing."""
    digest = hashlib.sha256()
    for images in (train, val):
        classes = tqdm(images.classes, f"fingerprint of {images.folder.name}", delay=2, disable=None, leave=False)
        for number, name in enumerate(classes):
            files = images.names(number)
            sizes = [str(size_bytes(images.folder, os.path.join(name, file))) for file in (*files[:1], *files[-1:])]
            words = (name, str(len(files)), *sizes, *files)
            digest.update(b"".join(os.fsencode(word) + b"\0" for word in words))
    num_classes = len({*train.classes, *val.classes})
    return f"{num_classes}-{len(train)}-{len(val)}-{digest.hexdigest()[:DIGITS]}"


def file_stat(path: str) -> list[int]:
    """Size in bytes, and the modification times of a file's content and of its inode, in ns. Raises OSError."""
    status = os.stat(path)
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def cached_fingerprint(data: Path) -> str:
    """The fingerprint of a data set, kept in the cache until the listing, or a file whose size is in it, has changed.

    Raises OSError and UserError as list_images does.
    """
    train, val = (list_images(data / part) for part in ("train", "val"))
    kept = cache_path(data, "fingerprint")
    listed = folders_and_times(train, val)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        before = json.loads(kept.read_bytes())
        if before["listed"] == listed and are_unchanged(before["files"]):
            return str(before["value"])
    value, stats = _fingerprint_and_stats(train, val)
    if index_path(data / "train").exists():
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            write_text_atomically(kept, json.dumps({"listed": listed, "value": value, "files": stats}))
    return value


def folders_and_times(train: ImageListing, val: ImageListing) -> str:
    """A hash of both folders, with their real paths: a link to one may lead to another copy, with equal times."""
    folders = b"\0".join(os.fsencode(os.path.realpath(listing.folder)) for listing in (train, val))
    return hashlib.sha256(f"{train.times}\n{val.times}\n".encode() + folders).hexdigest()


def are_unchanged(stats: Stats) -> bool:
    """Whether each file, by its path, has the file_stat that it had. Raises OSError."""
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        return [*pool.map(file_stat, stats)] == [*stats.values()]
