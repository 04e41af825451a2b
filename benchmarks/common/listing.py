"""The images of a folder of class folders, in ImageFolder's order, without a Python object for each of them.

The names are one buffer and a table of offsets, which all ranks and their loader workers map from one file: an index in
the cache folder, valid as long as no listed folder's modification time has changed. Needs no torch.
"""

import bisect
import contextlib
import hashlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy
from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, home_folder, replace_atomically

# --- files of arrays, in the format of safetensors: an index of images, and packed images ---

DTYPES: dict[str, numpy.dtype[Any]] = {
    "I64": numpy.dtype("<i8"),
    "I32": numpy.dtype("<i4"),
    "U32": numpy.dtype("<u4"),
    "U8": numpy.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8  # bytes

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


def map_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """The metadata and the mapped arrays of a file. Raises OSError, or DamagedFile where it is not whole.

    If the file is cut short later, SIGBUS ends the process that reads beyond its end.
    """
    try:
        # copy-on-write, so that torch takes the arrays without a warning; nobody writes
        content = numpy.memmap(path, numpy.uint8, mode="c").view(numpy.ndarray)
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        entries = json.loads(content[8:start].tobytes())
        metadata, data = entries.pop("__metadata__"), content[start:]
        if max(one["data_offsets"][1] for one in entries.values()) != len(data):
            raise DamagedFile(f"its {len(content)} bytes are not what its header says")
        return metadata, {
            name: data[slice(*one["data_offsets"])].view(DTYPES[one["dtype"]]).reshape(one["shape"])
            for name, one in entries.items()
        }
    except (ValueError, LookupError, TypeError, AttributeError):
        raise DamagedFile("its header is not readable") from None


# --- the listing and its index ---

# torchvision.datasets.folder.IMG_EXTENSIONS, copied so that this needs no torch; a test holds the two equal.
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FIRST_BYTES = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}  # of the formats that are decoded
VERSION = "2"
NO_HOME = Path("/nonexistent")  # what Debian calls the home of users who have none
LISTING_THREADS = 16  # folders: what a network file system takes to answer overlaps
LISTING_LIMIT_S = 4 * 3600.0  # that a process waits for another that lists
MIN_INDEXED_IMAGES = 10_000  # images; fewer are listed in a blink
MIN_FOLDER_AGE_NS = 2_000_000_000  # a folder changed that recently may change again with the same time


class ImageListing:
    """Image number i of `folder`: its path and its class's number.

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

    def __len__(self) -> int:
        return len(self._ends)

    def path(self, index: int) -> str:
        place = bisect.bisect_right(self._first, index) - 1
        (name,) = self._names_of(range(index, index + 1))
        return os.path.join(self.folder, self._folders[place], name)

    def target(self, index: int) -> int:
        """Place of the image's class in `classes`."""
        return self._class[bisect.bisect_right(self._first, index) - 1]

    def targets(self) -> numpy.ndarray:
        """All of them, int64."""
        return numpy.repeat(numpy.array(self._class, numpy.int64), numpy.diff(self._first))

    def names(self, number: int) -> list[str]:
        """Names of the images of class `number` below its folder, with / between folders, sorted."""
        found, of_class = [], len(self.classes[number]) + 1
        for place in range(bisect.bisect_left(self._class, number), bisect.bisect_right(self._class, number)):
            within = self._folders[place][of_class:]
            names = self._names_of(range(self._first[place], self._first[place + 1]))
            found += [f"{within}/{name}" for name in names] if within else names
        return sorted(found)

    def _names_of(self, images: range) -> list[str]:
        ends = [self._ends[images.start - 1] if images.start else 0, *self._ends[images.start : images.stop]]
        names = bytes(self._names[ends[0] : ends[-1]])
        return [os.fsdecode(names[start - ends[0] : end - ends[0]]) for start, end in itertools.pairwise(ends)]


def list_images(folder: Path) -> ImageListing:
    """The images below `folder`, from its index where that is valid, else listed, and indexed if they are many. Of
    several processes that want the same listing one makes it, and the others wait for its index.

    Links are followed. No file is opened: whether it is a good image is found when it is read. Raises OSError for what
    cannot be listed, and UserError for an image that is no file.
    """
    index = index_path(folder)
    if found := _read_index(folder, index):
        return found
    with contextlib.ExitStack() as lock:
        with contextlib.suppress(OSError):  # a cache that cannot be written, or a long wait, only costs time
            index.parent.mkdir(parents=True, exist_ok=True)
            lock.enter_context(hold_lock(index.with_suffix(".lock"), LISTING_LIMIT_S))
            if found := _read_index(folder, index):
                return found
        metadata, arrays, settled = scan_folder(folder)
        if len(arrays["ends"]) >= MIN_INDEXED_IMAGES and settled:
            with contextlib.suppress(OSError):
                _write_index(index, metadata, arrays)
                return ImageListing(folder, *map_arrays(index))
        return ImageListing(folder, metadata, arrays)


def index_path(folder: Path) -> Path:
    """In the cache folder: XDG_CACHE_HOME, or ~/.cache. A user without a home has no cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or (home_folder() or NO_HOME) / ".cache"
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return Path(cache) / "imagenet-parallel-benchmarks" / f"{name}.safetensors"


def _read_index(folder: Path, index: Path) -> ImageListing | None:
    """The listing of an index of which every folder still has the modification time, in ns, that it had."""
    with contextlib.suppress(OSError, DamagedFile, KeyError):
        metadata, arrays = map_arrays(index)
        times = json.loads(metadata["times"]).items()
        if metadata["version"] == VERSION and all(
            os.stat(os.path.join(folder, name)).st_mtime_ns == time_ns for name, time_ns in times
        ):
            return ImageListing(folder, metadata, arrays)
    return None


def _write_index(index: Path, metadata: dict[str, str], arrays: Arrays) -> None:
    def write(file: BinaryIO) -> None:
        file.write(file_header(metadata, {name: (array.dtype, array.shape) for name, array in arrays.items()}))
        for array in arrays.values():
            file.write(array.data)

    replace_atomically(index, write)


def scan_folder(folder: Path) -> tuple[dict[str, str], Arrays, bool]:
    """List `folder` anew: the metadata and arrays of an ImageListing, and whether all of it was left alone for a
    while."""
    began_ns = time.time_ns()
    times = {"": os.stat(folder).st_mtime_ns}
    with os.scandir(folder) as entries:
        classes = sorted(entry.name for entry in entries if entry.is_dir())
    if not classes:
        raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
    folders: list[str] = []
    first: list[int] = []
    class_numbers: list[int] = []
    names: list[bytes] = []
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listed = pool.map(lambda name: [*_walk(folder, name)], classes)
        bar = tqdm(listed, f"listing {folder.name}", len(classes), unit="class", delay=2, disable=None, leave=False)
        for number, found in enumerate(bar):
            for path, time_ns, images in sorted(found):
                times[path] = time_ns
                if images:
                    folders.append(path)
                    first.append(len(names))
                    class_numbers.append(number)
                    names += images
    metadata = {"version": VERSION, "classes": json.dumps(classes), "folders": json.dumps(folders)}
    metadata["times"] = json.dumps(times)
    arrays: Arrays = {
        "ends": numpy.cumsum(numpy.fromiter(map(len, names), numpy.int64, len(names))),
        "first": numpy.array(first, numpy.int64),
        "class": numpy.array(class_numbers, numpy.int64),
        "names": numpy.frombuffer(b"".join(names), numpy.uint8),
    }
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


# --- the fingerprint of a data set ---

DIGITS = 16


def fingerprint(data: Path) -> str:
    """Of the names of all images of <data>/train/ and <data>/val/, and of the sizes of each class's first and last.

    Raises OSError and UserError as list_images does.
    """
    return fingerprint_of(_classes(list_images(data / split)) for split in ("train", "val"))


def _classes(images: ImageListing) -> Iterator[tuple[str, list[str], list[int]]]:
    for number, name in enumerate(images.classes):
        files = images.names(number)
        ends = (*files[:1], *files[-1:])
        yield name, files, [os.stat(os.path.join(images.folder, name, file)).st_size for file in ends]


def fingerprint_of(splits: Iterable[Iterable[tuple[str, list[str], list[int]]]]) -> str:
    """Of train and val, as their classes in order: the name, the names of its images below its folder, sorted, and the
    sizes of the first and of the last, in bytes."""
    digest, class_names, num_images = hashlib.sha256(), set(), []
    for split in splits:
        num_images.append(0)
        for name, files, sizes in split:
            class_names.add(name)
            num_images[-1] += len(files)
            words = (name, str(len(files)), *map(str, sizes), *files, "")
            digest.update(os.fsencode("\0".join(words)))
    return f"{len(class_names)}-{num_images[0]}-{num_images[1]}-{digest.hexdigest()[:DIGITS]}"
