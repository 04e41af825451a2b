"""What a folder of images is, whatever it is called and whenever it was copied: part of what a run is.

    >>> known_fingerprint(Path("data/imagenet-mini"))
    '12-480-132-99ab6a71545deb75'

Classes, training images, validation images, and SHA-256 of all names and of the byte sizes of the first and the last
file of each class. Paths and times are not in it, so it is the same on every machine. The plan takes it once; ranks do
not. Needs no torch.
"""

import contextlib
import hashlib
import os
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.listing import Listing, cached, index_path, list_images
from benchmarks.common.results import write_whole

DIGITS = 16


def fingerprint(train: Listing, val: Listing) -> str:
    """Of the listings of <folder>/train/ and <folder>/val/. Raises OSError where a file of theirs is gone."""
    digest = hashlib.sha256()
    for images in (train, val):
        classes = tqdm(images.classes, f"fingerprint of {images.folder.name}", delay=2, disable=None, leave=False)
        for number, name in enumerate(classes):
            files = images.names(number)
            below = os.path.join(images.folder, name)
            sizes = [os.stat(os.path.join(below, file)).st_size for file in (*files[:1], *files[-1:])]
            words = (name, str(len(files)), *map(str, sizes), *files)
            digest.update(b"".join(os.fsencode(word) + b"\0" for word in words))
    num_classes = len({*train.classes, *val.classes})
    return f"{num_classes}-{len(train)}-{len(val)}-{digest.hexdigest()[:DIGITS]}"


def known_fingerprint(data: Path) -> str:
    """The fingerprint of a data set, taken once for as long as the listings of train/ and val/ hold.

    Raises OSError and UserError as list_images does.
    """
    train, val = (list_images(data / part) for part in ("train", "val"))
    kept, times = cached(data, "fingerprint"), f"{train.times}\n{val.times}"
    listed = hashlib.sha256(times.encode()).hexdigest()
    with contextlib.suppress(OSError, ValueError):
        before, value = kept.read_text(encoding="utf-8").split()
        if before == listed:
            return value
    value = fingerprint(train, val)
    if index_path(data / "train").exists():
        with contextlib.suppress(OSError):
            write_whole(kept, f"{listed} {value}\n")
    return value
