"""The images of a folder of class folders, in ImageFolder's order, without a Python object for each. Needs no torch.

Each entry is an image, or left out by its name, or refused. Ranks map an index in the cache folder, valid as
long as no folder's ctime changes.
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
from typing import Any, BinaryIO, NamedTuple

import numpy
from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, replace_atomically

# --- files of arrays, as safetensors has them ---

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
    """Not what its header says."""


def file_header(metadata: dict[str, str], arrays: ArrayShapes, reserved_bytes: int = 0) -> bytes:
    """The bytes before these arrays, those of larger elements first. reserved_bytes: its padded length."""
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
    """Metadata and mapped arrays. Raises OSError, or DamagedFile where the file is not whole."""
    try:
        # copy-on-write: torch warns of arrays that it cannot write
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

# torchvision.datasets.folder's
IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
FIRST_BYTES = {"JPEG": b"\xff\xd8\xff", "PNG": b"\x89PNG\r\n\x1a\n"}  # of the formats that are decoded
# What systems leave beside files, as names that begin with a dot
SYSTEM_NAMES = ("__MACOSX", "Thumbs.db", "desktop.ini", "@eaDir", "lost+found")
TEXT_NAMES = ("LICENSE", "README", "COPYING", "SHA256SUMS", "MD5SUMS")
TEXT_ENDINGS = (
    *(".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".md", ".yaml", ".yml", ".html", ".log", ".py", ".sh"),
    *(".mat", ".idx", ".md5", ".sha256"),  # no text, and no image
)
VERSION = "3"
LISTING_THREADS = 16  # for network file systems
LISTING_LIMIT_S = 4 * 3600.0  # that a process waits for another that lists
MIN_INDEXED_IMAGES = 10_000
MIN_FOLDER_AGE_NS = 2_000_000_000  # a younger one may change again with the same time


def is_hidden(name: str) -> bool:
    """A system's or an editor's."""
    return name.startswith(".") or name in SYSTEM_NAMES


def is_left_out(path: str) -> bool:
    """Hidden or text, by its name."""
    *_, name = names = path.split("/")
    return any(map(is_hidden, names)) or name in TEXT_NAMES or name.lower().endswith(TEXT_ENDINGS)


def format_names(names: Iterable[str]) -> str:
    """Three, and how many more."""
    names = sorted(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + rest


class ImageListing:
    """sizes: bytes."""

    def __init__(self, folder: Path, metadata: dict[str, str], arrays: Arrays):
        self.folder = folder
        self.classes: list[str] = json.loads(metadata["classes"])
        self.sizes = arrays["sizes"]
        self._folders: list[str] = json.loads(metadata["folders"])  # with images
        # number of the first image of each, and of the one after the last
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
        """A place in `classes`."""
        return self._class[bisect.bisect_right(self._first, index) - 1]

    def targets(self) -> numpy.ndarray:
        """int64."""
        return numpy.repeat(numpy.array(self._class, numpy.int64), numpy.diff(self._first))

    def files(self, number: int) -> list[tuple[str, int]]:
        """Sorted names, below the class's folder, and sizes."""
        found: list[tuple[str, int]] = []
        of_class = len(self.classes[number]) + 1
        for place in range(bisect.bisect_left(self._class, number), bisect.bisect_right(self._class, number)):
            within, images = self._folders[place][of_class:], range(self._first[place], self._first[place + 1])
            names = [f"{within}/{name}" if within else name for name in self._names_of(images)]
            found += zip(names, self.sizes[images.start : images.stop].tolist(), strict=True)
        return sorted(found)

    def _names_of(self, images: range) -> list[str]:
        ends = [self._ends[images.start - 1] if images.start else 0, *self._ends[images.start : images.stop]]
        names = bytes(self._names[ends[0] : ends[-1]])
        return [os.fsdecode(names[start - ends[0] : end - ends[0]]) for start, end in itertools.pairwise(ends)]


def list_images(folder: Path) -> ImageListing:
    """From the index of `folder` where that is valid, else listed, by one of several processes. Links are followed.
    Raises OSError for what cannot be listed, and UserError for what is neither an image in a class folder nor left
    out."""
    index = index_path(folder)
    if found := _read_index(folder, index):
        return found
    with contextlib.ExitStack() as lock:
        with contextlib.suppress(OSError):  # a cache that cannot be written only costs time
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
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return Path(cache) / "imagenet-parallel-benchmarks" / f"{name}.safetensors"


def _read_index(folder: Path, index: Path) -> ImageListing | None:
    """Of images written anew in their place, which leaves a folder's time, the sizes of the first and last tell."""
    with contextlib.suppress(OSError, DamagedFile, KeyError):
        metadata, arrays = map_arrays(index)
        if metadata["version"] != VERSION:
            return None
        found, first = ImageListing(folder, metadata, arrays), arrays["first"]
        ends = {*first.tolist(), *(first[1:] - 1).tolist(), len(found) - 1}
        times = json.loads(metadata["times"]).items()
        if all(os.stat(os.path.join(folder, name)).st_ctime_ns == time_ns for name, time_ns in times) and all(
            os.stat(found.path(number)).st_size == found.sizes[number] for number in ends
        ):
            return found
    return None


def _write_index(index: Path, metadata: dict[str, str], arrays: Arrays) -> None:
    def write(file: BinaryIO) -> None:
        file.write(file_header(metadata, {name: (array.dtype, array.shape) for name, array in arrays.items()}))
        for array in arrays.values():
            file.write(array.data)

    replace_atomically(index, write)


class _Folder(NamedTuple):
    path: str
    time_ns: int
    images: list[tuple[bytes, int]]
    inner: list[str]
    refused: list[str]


def scan_folder(folder: Path) -> tuple[dict[str, str], Arrays, bool]:
    """Of an ImageListing, and whether all of `folder` was left alone for a while."""
    began_ns = time.time_ns()
    top = _list_one(folder, "")
    classes = sorted(top.inner)
    refused = top.refused + [os.fsdecode(name) for name, _ in top.images]
    if not classes and not refused:
        raise FileNotFoundError(f"Couldn't find any class folder in {folder}.")
    times = {"": top.time_ns}
    folders: list[str] = []
    first: list[int] = []
    class_numbers: list[int] = []
    files: list[tuple[bytes, int]] = []
    with ThreadPoolExecutor(LISTING_THREADS) as pool:
        listed = pool.map(lambda name: [*_walk(folder, name)], classes)
        bar = tqdm(listed, f"listing {folder.name}", len(classes), unit="class", delay=2, disable=None, leave=False)
        for number, found in enumerate(bar):
            for one in sorted(found):
                times[one.path] = one.time_ns
                refused += one.refused
                if one.images:
                    folders.append(one.path)
                    first.append(len(files))
                    class_numbers.append(number)
                    files += one.images
    if refused:
        raise UserError(
            f"{str(folder)!r}: what would not be read ({len(refused):,}): {format_names(refused)}; sort images into "
            "class folders, mount what links lead to, and move the rest away; images end in "
            + ", ".join(IMG_EXTENSIONS)
        )
    metadata = {"version": VERSION, "classes": json.dumps(classes), "folders": json.dumps(folders)}
    metadata["times"] = json.dumps(times)
    arrays: Arrays = {
        "ends": numpy.cumsum(numpy.fromiter((len(name) for name, _ in files), numpy.int64, len(files))),
        "sizes": numpy.fromiter((size for _, size in files), numpy.int64, len(files)),
        "first": numpy.array(first, numpy.int64),
        "class": numpy.array(class_numbers, numpy.int64),
        "names": numpy.frombuffer(b"".join(name for name, _ in files), numpy.uint8),
    }
    return metadata, arrays, began_ns - max(times.values()) > MIN_FOLDER_AGE_NS


def _walk(folder: Path, name: str) -> Iterator[_Folder]:
    found = _list_one(folder, name)
    yield found
    for inner in found.inner:
        yield from _walk(folder, os.path.join(name, inner))


def _list_one(folder: Path, name: str) -> _Folder:
    path = os.path.join(folder, name)
    # the time before it is listed
    found = _Folder(name, os.stat(path).st_ctime_ns, [], [], [])
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir() and not is_hidden(entry.name):
                found.inner.append(entry.name)
            elif is_left_out(entry.name):
                continue
            elif entry.is_file() and entry.name.lower().endswith(IMG_EXTENSIONS):
                found.images.append((os.fsencode(entry.name), entry.stat().st_size))
            else:
                found.refused.append(os.path.join(name, entry.name))
    found.images.sort()
    return found


# --- the fingerprint ---

DIGITS = 16


def fingerprint(data: Path) -> str:
    """Of the names and sizes of all images of train/ and val/. Raises as list_images does."""
    return fingerprint_of(_classes(list_images(data / split)) for split in ("train", "val"))


def _classes(images: ImageListing) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    for number, name in enumerate(images.classes):
        yield name, images.files(number)


def fingerprint_of(splits: Iterable[Iterable[tuple[str, list[tuple[str, int]]]]]) -> str:
    """Of each split's classes, in order: names, and their images' sorted names and sizes in bytes."""
    digest, class_names, num_images = hashlib.sha256(), set(), []
    for split in splits:
        num_images.append(0)
        for name, files in split:
            class_names.add(name)
            num_images[-1] += len(files)
            words = (name, str(len(files)), *(f"{size} {file}" for file, size in files), "")
            digest.update(os.fsencode("\0".join(words)))
    return f"{len(class_names)}-{num_images[0]}-{num_images[1]}-{digest.hexdigest()[:DIGITS]}"
