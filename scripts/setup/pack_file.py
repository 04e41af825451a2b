"""Everything in a packed file but its images: the tables that follow them, and the header before them."""

import json
import os
from typing import BinaryIO

import numpy

from benchmarks.common.listing import ALIGNED, Arrays, ArrayShapes, ImageListing, file_header
from benchmarks.common.packed import FILE_KIND, VERSION

MIN_HEADER_BYTES = 1 << 14  # bytes, beside the classes' names


def pack_metadata(kind: str, listing: ImageListing, fingerprint: str) -> dict[str, str]:
    """fingerprint: of train and val."""
    metadata = {"what": FILE_KIND, "version": VERSION, "kind": kind, "part": listing.folder.name}
    return metadata | {"fingerprint": fingerprint, "classes": json.dumps(listing.classes)}


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
