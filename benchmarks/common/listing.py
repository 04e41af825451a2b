"""The images of a folder of class folders, in ImageFolder's order, without a Python object for each of them.

The names are one buffer and a table of offsets, which all ranks and their loader workers map from one file: an index in
the cache folder, valid as long as no listed folder's modification time has changed.
"""

import bisect
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from tqdm import tqdm

from benchmarks.common.mapped_arrays import Arrays, DamagedFile, map_arrays, write_arrays
from benchmarks.common.errors import UserError
from benchmarks.common.files import home_folder

# torchvision.datasets.folder.IMG_EXTENSIONS, copied so that this needs no torch; a test holds the two equal.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FIRST_BYTES = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}  # of the formats that are decoded
VERSION = "2"
NO_HOME = Path("/nonexistent")  # what Debian calls the home of users who have none
LISTING_THREADS = 16  # folders: what a network file system takes to answer overlaps
MIN_INDEXED_IMAGES = 10_000  # images; fewer are listed in a blink
MIN_FOLDER_AGE_NS = 2_000_000_000  # a folder changed that recently may change again with the same time


class ImageListing:
    """Image number i of `folder`: its path and its class's number. Raises OSError for what cannot be listed.

    classes: the names of the class folders, sorted. Paths are in the order of ImageFolder's samples.
    """

    def __init__(self, folder: Path, metadata: dict[str, str], arrays: Arrays):
        self.folder = folder
        self.classes: list[str] = json.loads(metadata["classes"])
        self._folders: list[str] = json.loads(metadata["folders"])  # the folders that hold images
        # number of the first image of each of them, and of the one after the last
        self._first = [*arrays["first"].tolist(), len(arrays["ends"])]
        self._class = arrays["class"].tolist()
        self._ends, self._names = arrays["ends"].data, arrays["names"].data
        self.times = metadata["times"]  # as text: equal for equal listings

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, index: int) -> str:
        return os.path.join(self.folder, self._folders[self._folder_of(index)], self._name(index))

    def target(self, index: int) -> int:
        """Place of the image's class in `classes`."""
        return self._class[self._folder_of(index)]

    def targets(self) -> numpy.ndarray:
        """All of them, int64."""
        return numpy.repeat(numpy.array(self._class, numpy.int64), numpy.diff(self._first))

    def names(self, number: int) -> list[str]:
        """Names of the images of class `number` below its folder, with / between folders, sorted."""
        found, of_class = [], len(self.classes[number]) + 1
        for place in range(bisect.bisect_left(self._class, number), bisect.bisect_right(self._class, number)):
            within = self._folders[place][of_class:]
            images = range(self._first[place], self._first[place + 1])
            found += [os.path.join(within, self._name(index)) for index in images]
        return sorted(found)

    def _name(self, index: int) -> str:
        start = self._ends[index - 1] if index else 0
        return os.fsdecode(bytes(self._names[start : self._ends[index]]))

    def _folder_of(self, index: int) -> int:
        return bisect.bisect_right(self._first, index) - 1


def list_images(folder: Path) -> ImageListing:
    """The images below `folder`, from its index where that is valid, else listed, and indexed if they are many.

    Links are followed. No file is opened: whether it is a good image is found when it is read. Raises OSError for what
    cannot be listed, and UserError for an image that is no file.
    """
    index = index_path(folder)
    with contextlib.suppress(OSError, DamagedFile, ValueError, KeyError):
        metadata, arrays = map_arrays(index)
        if metadata["version"] == VERSION and is_unchanged(folder, json.loads(metadata["times"])):
            return ImageListing(folder, metadata, arrays)
    metadata, arrays, settled = scan_folder(folder)
    if len(arrays["ends"]) >= MIN_INDEXED_IMAGES and settled:
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
            write_arrays(index, metadata, arrays)
            return ImageListing(folder, *map_arrays(index))
    return ImageListing(folder, metadata, arrays)


def cache_path(path: Path, kind: str) -> Path:
    """The file of the cache folder (XDG_CACHE_HOME, or ~/.cache) that holds what is known about `path`. A user without
    a home has no cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or (home_folder() or NO_HOME) / ".cache"
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    return Path(cache) / "imagenet-parallel-benchmarks" / f"{name}.{kind}"


def index_path(folder: Path) -> Path:
    return cache_path(folder, "safetensors")


def is_unchanged(folder: Path, times: dict[str, int]) -> bool:
    """Whether every folder that was listed still has the modification time, in ns, that it had."""
    return all(os.stat(os.path.join(folder, name)).st_mtime_ns == time_ns for name, time_ns in times.items())


class IndexTables:
    """The tables of an index, while the folders that hold images are added in their order."""

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._first: list[int] = []
        self._class: list[int] = []
        self._lengths = [numpy.zeros(0, numpy.int64)]
        self._names: list[bytes] = []
        self._num_images = 0

    def add(self, folder: str, class_number: int, images: list[bytes]) -> None:
        """folder: its path below the listed one. images: the names of those directly in it, sorted."""
        self._folders.append(folder)
        self._first.append(self._num_images)
        self._class.append(class_number)
        self._lengths.append(numpy.fromiter(map(len, images), numpy.int64, len(images)))
        self._names.append(b"".join(images))
        self._num_images += len(images)

    def finish(self, classes: list[str], times: dict[str, int]) -> tuple[dict[str, str], Arrays]:
        """The metadata and the arrays of an ImageListing. times: as is_unchanged has them."""
        values = (("classes", classes), ("folders", self._folders), ("times", times))
        metadata = {"version": VERSION} | {name: json.dumps(value) for name, value in values}
        return metadata, {
            "ends": numpy.cumsum(numpy.concatenate(self._lengths)),
            "first": numpy.array(self._first, numpy.int64),
            "class": numpy.array(self._class, numpy.int64),
            "names": numpy.frombuffer(b"".join(self._names), numpy.uint8),
        }


def list_names(folder: Path, names: Mapping[str, list[str]]) -> ImageListing:
    """What list_images would give for a folder whose class folders hold these images."""
    tables, classes = IndexTables(), sorted(names)
    for number, name in enumerate(classes):
        tables.add(name, number, [os.fsencode(image) for image in sorted(names[name])])
    return ImageListing(folder, *tables.finish(classes, {}))


def scan_folder(folder: Path) -> tuple[dict[str, str], Arrays, bool]:
    """List `folder` anew: the index's metadata and arrays, and whether all of it was left alone for a while."""
    began_ns = time.time_ns()
    times = {"": os.stat(folder).st_mtime_ns}
    with os.scandir(folder) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
    tables = IndexTables()
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listed = pool.map(lambda name: [*_walk(folder, name)], classes)
        bar = tqdm(listed, f"listing {folder.name}", len(classes), unit="class", delay=2, disable=None, leave=False)
        for number, found in enumerate(bar):
            for path, time_ns, images in sorted(found):
                times[path] = time_ns
                if images:
                    tables.add(path, number, images)
    metadata, arrays = tables.finish(classes, times)
    return metadata, arrays, began_ns - max(times.values()) > MIN_FOLDER_AGE_NS


def _walk(folder: Path, name: str) -> Iterator[tuple[str, int, list[bytes]]]:
    """(path below `folder`, its modification time in ns, names of its images) of a folder and of all below it.

    Raises UserError for an image that is no file, such as a link whose target is gone.
    """
    path = os.path.join(folder, name)
    time_ns = os.stat(path).st_mtime_ns  # before it is listed: what comes meanwhile makes the index old
    images, inner = [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir():
                inner.append(entry.name)
            elif entry.name.lower().endswith(IMG_EXTENSIONS):
                if not entry.is_file():  # costs no stat: the folder says what is a file
                    raise UserError(f"{entry.path!r} is not a file, or leads nowhere: fix it or remove it")
                images.append(entry.name)
    yield name, time_ns, [os.fsencode(image) for image in sorted(images)]
    for one in inner:
        yield from _walk(folder, os.path.join(name, one))
