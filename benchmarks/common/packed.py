"""One file with all images of train/ or val/, mapped into memory, for `loader: packed`.

`./bench data pack` and `./bench data import --pack` write it. It is a safetensors file (see mapped_arrays.py).
`images` holds the bytes of all images, uint8. `starts` and `ends`, int64, say where the bytes of each image are;
`shapes` has height and width, int32; `targets` its class, int32; `checksums` the CRC-32 of its bytes, uint32. The
tables have the order of the folder, so that batches are the same as with `loader: folder`. The bytes have another order
where an import wrote them. Needs no torch.
"""

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.listing import DamagedFile, cached_fingerprint, map_arrays
from scripts.shared.commands import bench_command

FILE_KIND, VERSION = "imagenet-parallel-benchmarks pack", "3"
IMAGES_PER_CHECK = 1000  # images
SPLITS = ("train", "val")


class PackedSource:
    """Images of a packed file, as FolderSource has those of a folder. An image is its JPEG's bytes, or its pixels,
    uint8 (height, width, 3).

    Raises OSError, or DamagedFile where the file is not whole, or of another kind or version.
    """

    def __init__(self, path: Path):
        self.path = path
        self.metadata, arrays = map_arrays(path)
        if self.metadata.get("what") != FILE_KIND:
            raise DamagedFile("it is not a packed file")
        if self.metadata.get("version") != VERSION:
            raise DamagedFile(f"it has version {self.metadata.get('version')!r}, and this code reads {VERSION!r}")
        try:
            self.classes: list[str] = json.loads(self.metadata["classes"])
            self._pixels = self.metadata["kind"] != "jpeg256"
            self._images, self._shapes, self._targets = arrays["images"], arrays["shapes"], arrays["targets"]
            self._starts, self._ends, self._checksums = arrays["starts"].data, arrays["ends"].data, arrays["checksums"]
        except (KeyError, ValueError):
            raise DamagedFile("it does not have the tables of a packed file") from None

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

    expected: the fingerprint that the file must have; empty: any. A JPEG is compared with its checksum each time it is
    read, which costs 2 %. Pixels are not, which would take as long as cropping: `./bench data pack` does it.
    """
    path = pack_path(config, split)
    again = bench_command("data pack", pack=config.pack, data=config.data) + " writes it"
    try:
        pack = PackedSource(path)
        if (holds := (pack.metadata["part"], pack.metadata["kind"])) != (split, config.pack):
            raise DamagedFile(f"it holds {' '.join(holds)}, not {split} {config.pack}")
        if expected and pack.metadata["fingerprint"] != expected:
            raise DamagedFile(f"it is of other images than {config.data if has_files(config.data) else 'train'}")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}); {again}") from None
    except (DamagedFile, KeyError, ValueError) as error:
        raise UserError(f"{path} cannot be used: {error}; {again} again") from None
    return pack
