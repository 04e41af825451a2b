"""One file with all images of train/ or val/, mapped into memory, for `loader: packed`.

`./bench data pack` and `./bench data import --pack` write it. It is a safetensors file (see mapped_arrays.py).
`images` holds the bytes of all images. Tables hold where the bytes of each image begin and end, and its shape, class
and checksum. The tables have the order of the folder, so that batches are the same as with `loader: folder`. The bytes
have another order where an import wrote them. Arrow would need 40 MB of library to map the same bytes, and a .npy file
holds one array only. Needs no torch.
"""

import contextlib
import json
import os
import re
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from tqdm import tqdm

from benchmarks.common.config.config import PACK_KINDS, Config
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import cache_path
from benchmarks.common.data.mapped_arrays import Arrays, DamagedFile, checksum, map_arrays
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system.commands import bench_command
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import MAX_IMAGE_BYTES, hold_lock, read_regular_file

FILE_KIND, VERSION = "imagenet-parallel-benchmarks pack", "3"
IMAGES_PER_CHECK = 1000  # images
CHECK_LIMIT_S = 3600.0  # how long a rank waits for another rank's check; reading 700 GB takes about an hour
SPLITS = ("train", "val")
LARGEST_NOTE_BYTES = 1000
# The type and the shape of a row of each table. `images` has one row per byte, the others have one row per image.
TABLES = {"images": ("|u1", ()), "starts": ("<i8", ()), "ends": ("<i8", ()), "shapes": ("<i4", (2,))}
TABLES |= {"targets": ("<i4", ()), "checksums": ("<u4", ())}


class PackedSource:
    """Images of a packed file, as FolderSource has those of a folder. An image is its JPEG's bytes, or its pixels,
    uint8 (height, width, 3).

    Raises OSError, or DamagedFile where the file, its header or its tables are not whole, or do not fit each other. A
    right checksum does not show that they fit: whoever wrote the file also wrote the checksum. `check` looks at the
    pixels.
    """

    def __init__(self, path: Path):
        self.path = path
        self.metadata, arrays = map_arrays(path)
        if self.metadata.get("what") != FILE_KIND:
            raise DamagedFile("it is not a packed file")
        if self.metadata.get("version") != VERSION:
            raise DamagedFile(
                f"it has version {self.metadata.get('version', '')[:20]!r}, and this code reads {VERSION!r}"
            )
        if {name: (array.dtype.str, array.shape[1:]) for name, array in arrays.items()} != TABLES:
            raise DamagedFile("it does not have the tables of a packed file")
        images = arrays.pop("images")
        if checksum(self.metadata, arrays) != self.metadata.get("checksum"):
            raise DamagedFile("its tables do not have their checksum")
        self.classes: list[str] = check_metadata(self.metadata)
        self._pixels = self.metadata["kind"] != "jpeg256"
        check_tables(arrays, len(images), len(self.classes), self._pixels)
        check_counts(self.metadata, len(arrays["targets"]), len(self.classes))
        self._images, self._starts, self._ends = images, arrays["starts"].data, arrays["ends"].data
        self._shapes, self._targets, self._checksums = arrays["shapes"], arrays["targets"], arrays["checksums"]

    def __len__(self) -> int:
        return len(self._targets)

    def content(self, index: int) -> numpy.ndarray | bytes:
        """Raises ValueError for an image that was not readable when it was packed, or a JPEG that was damaged since."""
        stored = self._stored(index)
        if not len(stored):
            raise ValueError("it was not readable when it was packed")
        if self._pixels:
            return stored.reshape(*self._shapes[index], 3)
        if zlib.crc32(stored.data) != self._checksums[index]:
            raise ValueError("it does not have its checksum")
        return stored.tobytes()

    def name(self, index: int) -> str:
        return f"image {index} of {self.path}"

    def target(self, index: int) -> int:
        return int(self._targets[index])

    def num_unreadable(self) -> int:
        """Images that could not be decoded when they were packed."""
        return sum(start == end for start, end in zip(self._starts, self._ends, strict=True))

    def check(self, description: str) -> None:
        """Compare every image with its checksum. Raises DamagedFile with the first that differs."""

        def damaged(start: int) -> list[int]:
            some = range(start, min(start + IMAGES_PER_CHECK, len(self)))
            return [index for index in some if zlib.crc32(self._stored(index).data) != self._checksums[index]]

        starts = range(0, len(self), IMAGES_PER_CHECK)
        with ThreadPoolExecutor() as pool:
            for found in tqdm(pool.map(damaged, starts), description, len(starts), delay=2, disable=None, leave=False):
                if found:
                    raise DamagedFile(f"image {found[0]} does not have its checksum")

    def _stored(self, index: int) -> numpy.ndarray:
        return self._images[self._starts[index] : self._ends[index]]


def check_metadata(metadata: dict[str, str]) -> list[str]:
    """The names of the classes. Raises DamagedFile where these or other metadata that a run uses are not valid."""
    try:
        classes = json.loads(metadata["classes"])
    except (KeyError, ValueError, RecursionError):
        classes = None
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise DamagedFile("its classes are not a list of names")
    if len({*classes}) != len(classes):
        raise DamagedFile("it has a class twice")
    kind, split = metadata.get("kind"), metadata.get("part")
    if kind not in PACK_KINDS or split not in SPLITS or not metadata.get("fingerprint"):
        raise DamagedFile("it does not say which images it holds")
    return classes


def check_counts(metadata: dict[str, str], num_images: int, num_classes: int) -> None:
    """Raises DamagedFile where the fingerprint, by which runs are compared, has other counts than the file."""
    counts = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})-([0-9]{1,9})-[0-9a-f]+", metadata["fingerprint"])
    if counts is None:
        raise DamagedFile("its fingerprint is none")
    of_both, num_train, num_val = map(int, counts.groups())
    expected = num_train if metadata["part"] == "train" else num_val
    # val may lack classes of train
    classes_fit = num_classes == of_both if metadata["part"] == "train" else num_classes <= of_both
    if num_images != expected or not classes_fit:
        raise DamagedFile(
            f"it has {num_images} images of {num_classes} classes, and its fingerprint says {expected} of {of_both}"
        )


def check_tables(tables: Arrays, num_bytes: int, num_classes: int, pixels: bool) -> None:
    """Raises DamagedFile where a table points outside of the images or the classes, or a shape does not fit its
    size."""
    starts, ends, targets = tables["starts"], tables["ends"], tables["targets"]
    shapes = tables["shapes"].astype(numpy.int64)
    if len({len(table) for table in tables.values()}) > 1:
        raise DamagedFile("its tables do not have the same number of images")
    if not len(ends):
        raise DamagedFile("it holds no image")
    if (starts < 0).any() or (ends < starts).any() or (ends > num_bytes).any():
        raise DamagedFile("an image ends before it begins, or lies beyond the bytes of all images")
    sizes = ends - starts
    if sizes.sum(dtype=numpy.float64) > num_bytes:
        raise DamagedFile("its images overlap")
    if (targets < 0).any() or (targets >= num_classes).any():
        raise DamagedFile("an image has no class")
    areas = shapes[:, 0] * shapes[:, 1]  # below 2^62
    if (shapes < 0).any() or (pixels and ((sizes % 3 != 0) | (areas != sizes // 3)).any()):
        raise DamagedFile("an image does not have the size of its shape")
    if not pixels and (sizes > MAX_IMAGE_BYTES).any():
        raise DamagedFile(f"an image has more than {MAX_IMAGE_BYTES} bytes")


def pack_path(config: Config, split: str) -> Path:
    """Below the folder that PACKED names, else below packed/ beside train/ and val/."""
    folder = os.environ.get("PACKED") or Path(config.data) / "packed"
    return Path(folder) / config.pack / f"{split}.safetensors"


def has_files(data: str) -> bool:
    """Whether the folder has train/ and val/. Without them there can be packed files only."""
    return all((Path(data) / split).is_dir() for split in ("train", "val"))


def open_packs(config: Config) -> list[PackedSource]:
    """The packed train and val of a run, both of one folder: config.data, where that exists.

    Raises UserError.
    """
    try:
        expected = cached_fingerprint(Path(config.data)) if has_files(config.data) else ""
    except OSError as error:
        raise UserError(f"cannot read {config.data} ({error.strerror}); fix its permissions or mount") from None
    train = open_pack(config, "train", expected)
    return [train, open_pack(config, "val", train.metadata["fingerprint"])]


def open_pack(config: Config, split: str, expected: str = "") -> PackedSource:
    """The packed train or val of a run. Raises UserError where the file is missing, damaged, or of other images.

    expected: the fingerprint that the file must have; empty: any.

    A JPEG is checked each time it is read, which costs 2 %. To check pixels takes about as long as to crop them. So
    pixels are checked once after they were written or copied, by the file's time, size and inode. Damage that comes
    later is not found.
    """
    path = pack_path(config, split)
    again = bench_command("data pack", pack=config.pack, data=config.data) + " writes it"
    try:
        pack = PackedSource(path)
        if (holds := (pack.metadata["part"], pack.metadata["kind"])) != (split, config.pack):
            raise DamagedFile(f"it holds {' '.join(holds)}, not {split} {config.pack}")
        if expected and pack.metadata["fingerprint"] != expected:
            raise DamagedFile(f"it is of other images than {config.data if has_files(config.data) else 'train'}")
        if config.pack != "jpeg256":
            check_once(pack)
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}); {again}") from None
    except (DamagedFile, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {error}; {again} again") from None
    return pack


def check_once(pack: PackedSource) -> None:
    """Check all images, unless a note says that they were checked. One rank of a machine checks, the others wait.

    The lock is a file in the user's cache: whoever can read the packed file could hold a lock on that.
    Raises DamagedFile.
    """
    lock = cache_path(pack.path, f"{socket.gethostname()}.lock")  # nodes can share the cache, and not the packed file
    with contextlib.ExitStack() as stack:
        if not was_checked(pack.path):
            with contextlib.suppress(OSError):  # no cache, no locks there, or none in time: then each rank checks
                lock.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(hold_lock(lock, CHECK_LIMIT_S))
        if not was_checked(pack.path):
            pack.check(f"checking {pack.path.name}")
            note_checked(pack.path)


def note_paths(path: Path) -> list[Path]:
    """Paths of the note that a file was checked: beside the file, for all users; else in the user's cache."""
    return [path.with_suffix(".checked"), cache_path(path, "checked")]


def was_checked(path: Path) -> bool:
    return any(_is_noted(note, path) for note in note_paths(path))


def note_checked(path: Path) -> None:
    for note in note_paths(path):
        with contextlib.suppress(OSError):  # where neither can be written, the next run checks again
            return _write_note(note, path)


def was_written(path: Path) -> bool:
    """Whether this user packed the file, by a note in the user's cache: one beside the file may have come with it."""
    return _is_noted(cache_path(path, "written"), path)


def note_written(path: Path, file: Path) -> None:
    """Note that this user packed what is at `path`, or is there as soon as `file` is renamed. Without a cache nothing
    is noted."""
    with contextlib.suppress(OSError):
        _write_note(cache_path(path, "written"), file)


def _is_noted(note: Path, path: Path) -> bool:
    """Whether a note is of the file as it is now."""
    with contextlib.suppress(OSError):
        return read_regular_file(note, LARGEST_NOTE_BYTES) == _state(path).encode()
    return False


def _write_note(note: Path, path: Path) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(note, _state(path))


def _state(path: Path) -> str:
    stat = os.stat(path)
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}\n"
