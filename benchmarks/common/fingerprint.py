"""What a folder of images is, whatever it is called and whenever it was copied: part of what a run is.

    >>> fingerprint(Path("data/imagenet-mini"))
    '12-480-132-99ab6a71545deb75'

Classes, training images, validation images, and SHA-256 of all names and of the byte sizes of the first and the last
file of each class. Paths and times are not in it, so it is the same on every machine. It reads names, no file:
seconds for ImageNet's 1.3 million. The plan takes it once; ranks do not. Needs no torch.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.listing import IMG_EXTENSIONS, cached, index_path, list_images
from benchmarks.common.results import write_whole

DIGITS = 16


def fingerprint(folder: Path) -> str:
    """Of `folder`/train/<class>/ and `folder`/val/<class>/. Raises OSError where these cannot be read."""
    digest, num_images, classes = hashlib.sha256(), {"train": 0, "val": 0}, set()
    for split in num_images:
        names = sorted(entry.name for entry in os.scandir(os.path.join(folder, split)) if entry.is_dir())
        for name in tqdm(names, desc=f"fingerprint of {split}", unit="class", disable=None, leave=False):
            below = os.path.join(folder, split, name)
            files = sorted(_images(below))
            sizes = [os.stat(os.path.join(below, file)).st_size for file in (*files[:1], *files[-1:])]
            words = (name, str(len(files)), *map(str, sizes), *files)
            digest.update(b"".join(os.fsencode(word) + b"\0" for word in words))
            num_images[split] += len(files)
        classes.update(names)
    return f"{len(classes)}-{num_images['train']}-{num_images['val']}-{digest.hexdigest()[:DIGITS]}"


def _images(folder: str, within: str = "") -> Iterator[str]:
    """Names of the images below `folder` that ImageFolder reads, with / between folders; links are followed."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _images(entry.path, f"{within}{entry.name}/")
            elif entry.name.lower().endswith(IMG_EXTENSIONS):
                yield within + entry.name


def known_fingerprint(data: Path) -> str:
    """The fingerprint of a data set, taken once for as long as the listings of train/ and val/ hold."""
    parts = [list_images(data / part) for part in ("train", "val")]
    kept, times = cached(data, "fingerprint"), "\n".join(part.times for part in parts)
    listed = hashlib.sha256(times.encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        before, value = kept.read_text(encoding="utf-8").split()
        if before == listed:
            return value
    value = fingerprint(data)
    if index_path(data / "train").exists():
        with contextlib.suppress(OSError):
            write_whole(kept, f"{listed} {value}\n")
    return value
