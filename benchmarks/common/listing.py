"""The images of a folder of class folders, in ImageFolder's order, without a Python object for each of them.

The names are one buffer and a table of offsets, which all ranks and their loader workers map from one file: an index in
the cache folder, valid as long as no listed folder's modification time has changed.
"""

import bisect
import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy
from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import home_folder, replace_atomically, write_text_atomically

DTYPES: dict[str, numpy.dtype[Any]] = {
    "I64": numpy.dtype("<i8"),
    "I32": numpy.dtype("<i4"),
    "U32": numpy.dtype("<u4"),
    "U8": numpy.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8

Arrays = dict[str, numpy.ndarray]
ArrayShapes = dict[str, tuple[numpy.dtype[Any], tuple[int, ...]]]


class DamagedFile(Exception):
    """The file is not what its header says; the text says how."""


def file_header(metadata: dict[str, str], arrays: ArrayShapes, reserved_bytes: int = 0) -> bytes:
    """The bytes before arrays of these types and shapes, of which those of larger elements must come first.

    reserved_bytes: the header is padded to this length; 0: it is as short as it can be.
    """
    entries: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, shape) in arrays.items():
        end = offset + dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = max(reserved_bytes - 8, -(-len(text) // ALIGNED) * ALIGNED)
    assert reserved_bytes == 0 or len(text) <= reserved_bytes - 8, "the header is longer than its reserved bytes"
    return length.to_bytes(8, "little") + text.ljust(length)


def write_arrays(path: Path, metadata: dict[str, str], arrays: Arrays) -> None:
    """A new file, in place of an old one, whole or not at all. Raises OSError."""
    header = file_header(metadata, {name: (array.dtype, array.shape) for name, array in arrays.items()})
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        file.write(header)
        for array in arrays.values():
            file.write(numpy.ascontiguousarray(array).data)

    replace_atomically(path, write)


def map_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """The metadata and the mapped arrays of a file. Raises OSError, or DamagedFile where it is not whole.

    If the file is cut short later, SIGBUS ends the process that reads beyond its end.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise DamagedFile("it ends within its header")
        try:
            entries = json.loads(file.read(length))
            metadata = entries.pop("__metadata__")
            if max(one["data_offsets"][1] for one in entries.values()) != size - 8 - length:
                raise DamagedFile(f"its {size} bytes are not what its header says")
            # copy-on-write, so that torch takes the arrays without a warning; nobody writes
            data = numpy.memmap(file, mode="c", dtype=numpy.uint8, shape=(size,))[8 + length :].view(numpy.ndarray)
            arrays = {
                name: data[slice(*one["data_offsets"])].view(DTYPES[one["dtype"]]).reshape(one["shape"])
                for name, one in entries.items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            raise DamagedFile("its header is not readable") from None
    return metadata, arrays


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
