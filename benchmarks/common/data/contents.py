"""A hash of the names and bytes of a folder's images, as fingerprint.py has one of names and sizes.

A run's settings hold both.

    >>> cached_contents(Path("data/imagenet-mini"))
    '612-of-612-99ab6a71545deb75'

The text says how many images were hashed, of how many, and has the SHA-256 of the names and the bytes of the hashed
images. Up to MAX_HASHED_IMAGES images, all are hashed. Of more images a sample is hashed, stratified by class: of each
class its share, evenly spaced in the order of the names. The hash changes where a part of the images was replaced, and
need not change where one image was. Needs no torch.
"""

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.data.fingerprint import (
    DIGITS,
    Stats,
    are_unchanged,
    file_stat,
    folders_and_times,
    keep_value,
    kept_value,
)
from benchmarks.common.data.listing import (
    FIRST_BYTES,
    LISTING_THREADS,
    MIN_FOLDER_AGE_NS,
    ImageListing,
    cache_path,
    list_images,
)
from benchmarks.common.system.files import MAX_IMAGE_BYTES, open_regular_file

MAX_HASHED_IMAGES = 20_000
CONTENTS = re.compile(rf"[0-9]+-of-[0-9]+-[0-9a-f]{{{DIGITS}}}", re.ASCII)
READ_BYTES = 1 << 20
NUM_FIRST_BYTES = max(map(len, FIRST_BYTES.values()))
UNREADABLE = hashlib.sha256(b"unreadable").digest()  # a run says so, or skips the file

HashedFiles = Mapping[str, tuple[bytes, list[int]]]
"""By <part>/<class>/<image>: what image_hash gives, and file_stat of the file that had these bytes."""


def cached_contents(data: Path, hashed: HashedFiles | None = None) -> str:
    """The contents of a data set, kept in the cache as long as size and both times of every hashed file hold.

    hashed: files that their writer has hashed; none is read where all of the sample are there and as they were.
    Raises OSError and UserError as list_images does, and OSError for a file that is gone.
    """
    began_ns = time.time_ns()
    train, val = (list_images(data / part) for part in ("train", "val"))
    kept = cache_path(data, "contents")
    listed = folders_and_times(train, val)
    if before := kept_value(kept, listed):
        return before
    value, stats = _contents_of_hashed(train, val, hashed or {}) or hash_images(train, val)
    times = [*json.loads(train.times).values(), *json.loads(val.times).values(), *(stat[2] for stat in stats.values())]
    if began_ns - max(times) > MIN_FOLDER_AGE_NS:  # else a file may be written again with the same times
        keep_value(kept, listed, value, stats)
    return value


def hash_images(train: ImageListing, val: ImageListing) -> tuple[str, Stats]:
    """The contents, and file_stat of every hashed file from before the file was read."""
    chosen = _sample_of_both(train, val)
    hashes: list[bytes] = []
    stats: Stats = {}
    unreadable: list[str] = []
    stop = threading.Event()
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        try:
            hashed = pool.map(lambda path: _hash_file(path, stop), (path for _, path in chosen))
            bar = tqdm(hashed, "hashing images", len(chosen), unit="image", delay=2, disable=None, leave=False)
            for (_, path), (digest, stat, trouble) in zip(chosen, bar, strict=True):
                stats[path] = stat
                hashes.append(digest)
                if trouble:
                    unreadable.append(f"{path!r} ({trouble})")
        except BaseException:  # as ^C: else the pool would hash all that is left
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        print(f"warning: an image cannot be hashed: {unreadable[0]}{more}; replace or remove it", file=sys.stderr)
    return _join_hashes(train, val, [name for name, _ in chosen], hashes), stats


def contents_from_hashes(train: ImageListing, val: ImageListing, hash_of: Callable[[str], bytes]) -> str:
    """The contents of images whose hashes are known.

    hash_of: gives the image_hash of an image by its name, <part>/<class>/<image>.
    """
    names = [name for name, _ in _sample_of_both(train, val)]
    return _join_hashes(train, val, names, [hash_of(name) for name in names])


def sampled_names(train: ImageListing, val: ImageListing) -> Iterator[str]:
    """<part>/<class>/<image> of the images that are hashed for the contents."""
    return (name for name, _ in _sample_of_both(train, val))


def image_hash(sha256: bytes, content: bytes | memoryview) -> bytes:
    """What stands for an image's file in the contents: its SHA-256, or UNREADABLE where the file is no image."""
    return sha256 if _may_be_image(bytes(content[:NUM_FIRST_BYTES])) else UNREADABLE


def _may_be_image(first: bytes) -> bool:
    """Whether a file may be an image, by its first bytes. Other files are not hashed: the contents are published, a
    link may lead to a private file, and a short file can be guessed from its hash. An empty file has nothing to guess.
    """
    return not first or first.startswith((*FIRST_BYTES.values(),))


def _contents_of_hashed(train: ImageListing, val: ImageListing, hashed: HashedFiles) -> tuple[str, Stats] | None:
    """What hash_images gives; None where an image of the sample was not hashed, is UNREADABLE, or has changed."""
    chosen = _sample_of_both(train, val)
    if any(name not in hashed or hashed[name][0] == UNREADABLE for name, _ in chosen):
        return None
    stats = {path: hashed[name][1] for name, path in chosen}
    if not are_unchanged(stats):
        return None
    names = [name for name, _ in chosen]
    return _join_hashes(train, val, names, [hashed[name][0] for name in names]), stats


def _join_hashes(train: ImageListing, val: ImageListing, names: list[str], hashes: list[bytes]) -> str:
    total = hashlib.sha256()
    for name, digest in zip(names, hashes, strict=True):
        total.update(os.fsencode(name) + b"\0" + digest)
    return f"{len(names)}-of-{len(train) + len(val)}-{total.hexdigest()[:DIGITS]}"


def _sample_of_both(train: ImageListing, val: ImageListing) -> list[tuple[str, str]]:
    num_images = len(train) + len(val)
    return [each for listing in (train, val) for each in _sample(listing, num_images)]


def _sample(listing: ImageListing, num_images: int) -> Iterator[tuple[str, str]]:
    """(part/class/name, path) of the images of a listing that are hashed. num_images: of both listings."""
    root = os.path.realpath(listing.folder)  # the working folder may be another next time
    for number, class_name in enumerate(listing.classes):
        names = listing.names(number)
        count = min(len(names), -(-len(names) * MAX_HASHED_IMAGES // max(1, num_images)))
        for place in range(count):
            name = os.path.join(class_name, names[(2 * place + 1) * len(names) // (2 * count)])
            yield os.path.join(listing.folder.name, name), os.path.join(root, name)


def _hash_file(path: str, stop: threading.Event) -> tuple[bytes, list[int], str]:
    """SHA-256 of a file, its file_stat from before, and why it is UNREADABLE or ''.

    What is written to the file meanwhile makes the file_stat old. stop: the file is read no further once it is set.
    """
    stat = file_stat(path)
    digest, num_bytes = hashlib.sha256(), 0
    try:
        with open_regular_file(path) as file:
            if os.fstat(file.fileno()).st_size > MAX_IMAGE_BYTES:
                return UNREADABLE, stat, f"it has {stat[0]} bytes, more than an image, {MAX_IMAGE_BYTES}"
            while num_bytes <= MAX_IMAGE_BYTES and not stop.is_set() and (content := file.read(READ_BYTES)):
                if not num_bytes and not _may_be_image(content):
                    return UNREADABLE, stat, "its first bytes are of neither a JPEG nor a PNG"
                digest.update(content)
                num_bytes += len(content)
        return digest.digest(), stat, ""
    except OSError as error:
        return UNREADABLE, stat, str(error.strerror)
