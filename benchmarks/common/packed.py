"""All images of train/ or val/ in one safetensors file, mapped into memory, for `loader: packed`. Needs no torch.

`images` holds all bytes, uint8; `starts` and `ends`, int64, each image's place; `shapes` height and width, int32;
`targets` its class, int32; `checksums` its CRC-32, uint32. Only `images` is not in the folder's order.
"""

import json
import os
import shlex
import zlib
from pathlib import Path

import numpy

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.listing import DamagedFile, fingerprint, map_arrays

FILE_KIND, VERSION = "imagenet-parallel-benchmarks pack", "4"
SPLITS = ("train", "val")


class PackedSource:
    """Raises OSError, or DamagedFile where the file is not whole, or of another kind or version."""

    def __init__(self, path: Path):
        self.path = path
        self.metadata, arrays = map_arrays(path)
        if (self.metadata.get("what"), self.metadata.get("version")) != (FILE_KIND, VERSION):
            raise DamagedFile(f"it is not a packed file of version {VERSION}")
        self.classes: list[str] = json.loads(self.metadata["classes"])
        self._pixels = self.metadata["kind"] != "jpeg256"
        self._images, self.shapes, self._targets = arrays["images"], arrays["shapes"], arrays["targets"]
        self._starts, self._ends, self.checksums = arrays["starts"].data, arrays["ends"].data, arrays["checksums"]

    def __len__(self) -> int:
        return len(self._targets)

    def content(self, index: int) -> numpy.ndarray | bytes:
        """A JPEG's bytes, or pixels, uint8 (height, width, 3). Raises ValueError for an unreadable image."""
        stored = self._images[self._starts[index] : self._ends[index]]
        if not len(stored):
            raise ValueError("it was not readable when it was packed")
        if self._pixels:
            return stored.reshape(*self.shapes[index], 3)
        if zlib.crc32(stored.data) != self.checksums[index]:
            raise ValueError("it does not have its checksum")
        return stored.tobytes()

    def name(self, index: int) -> str:
        return f"image {index} of {self.path}"

    def target(self, index: int) -> int:
        return int(self._targets[index])


def pack_path(config: Config, split: str) -> Path:
    """Below PACKED, else below packed/ beside train/ and val/."""
    folder = os.environ.get("PACKED") or Path(config.data) / "packed"
    return Path(folder) / config.pack / f"{split}.safetensors"


def has_files(data: str) -> bool:
    return all((Path(data) / split).is_dir() for split in ("train", "val"))


def open_packs(config: Config) -> list[PackedSource]:
    """Of the images of config.data, where that has any. Raises UserError."""
    try:
        expected = fingerprint(Path(config.data)) if has_files(config.data) else ""
    except OSError as error:
        raise UserError(f"cannot read {config.data} ({error.strerror}); fix its permissions or mount") from None
    train = open_pack(config, "train", expected)
    return [train, open_pack(config, "val", train.metadata["fingerprint"])]


def open_pack(config: Config, split: str, expected: str = "") -> PackedSource:
    """expected: its fingerprint; empty: any. Raises UserError."""
    path = pack_path(config, split)
    again = f"./bench data pack --pack {config.pack} --data {shlex.quote(config.data)} writes it"
    try:
        pack = PackedSource(path)
        if (holds := (pack.metadata["part"], pack.metadata["kind"])) != (split, config.pack):
            raise DamagedFile(f"it holds {' '.join(holds)}, not {split} {config.pack}")
        if expected and pack.metadata["fingerprint"] != expected:
            raise DamagedFile(f"it is of other images than {config.data if has_files(config.data) else 'train'}")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror or error}); {again}") from None
    except DamagedFile as error:
        raise UserError(f"{path} cannot be used: {error}; {again} again") from None
    return pack
