"""Everything in a packed file but its images: the tables that follow them, and the header before them. And the check
of a written file."""

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy
from tqdm import tqdm

from benchmarks.common.listing import ALIGNED, Arrays, ArrayShapes, DamagedFile, file_header
from benchmarks.common.packed import FILE_KIND, VERSION, PackedSource

MIN_HEADER_BYTES = 1 << 14  # bytes, beside the classes' names
IMAGES_PER_CHECK = 1000  # images


def pack_metadata(kind: str, split: str, classes: list[str], fingerprint: str) -> dict[str, str]:
    """classes: of the split, sorted. fingerprint: of train and val."""
    metadata = {"what": FILE_KIND, "version": VERSION, "kind": kind, "part": split}
    return metadata | {"fingerprint": fingerprint, "classes": json.dumps(classes)}


def header_size(metadata: dict[str, str]) -> int:
    """Bytes that are enough for the header of a file with these metadata."""
    return MIN_HEADER_BYTES + -(-len(metadata["classes"].encode()) * 2 // 4096) * 4096


def write_tables(file: BinaryIO, metadata: dict[str, str], tables: Arrays, header_bytes: int) -> None:
    """Write the tables behind the images, and at last the header before them.

    file: holds `header_bytes` of any content, and the images up to its end. tables: those of packed.py but `images`.
    """
    num_bytes = file.seek(0, os.SEEK_END) - header_bytes
    padding = -num_bytes % ALIGNED
    arrays: ArrayShapes = {"images": (numpy.dtype("u1"), (num_bytes + padding,))}
    arrays |= {name: (table.dtype, table.shape) for name, table in tables.items()}
    file.write(bytes(padding))
    for table in tables.values():
        file.write(table.tobytes())
    file.seek(0)
    file.write(file_header(metadata, arrays, header_bytes))


def check_pack(pack: PackedSource) -> None:
    """Compare every image with its checksum. Raises DamagedFile with the first that differs."""

    def damaged(start: int) -> list[int]:
        some = range(start, min(start + IMAGES_PER_CHECK, len(pack)))
        return [index for index in some if zlib.crc32(pack.stored(index).data) != pack.checksums[index]]

    starts, title = range(0, len(pack), IMAGES_PER_CHECK), f"checking {pack.path.name}"
    with ThreadPoolExecutor() as pool:
        for found in tqdm(pool.map(damaged, starts), title, len(starts), delay=2, disable=None, leave=False):
            if found:
                raise DamagedFile(f"image {found[0]} does not have its checksum")
