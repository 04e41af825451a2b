"""Arrays in one file that is mapped, not read: the safetensors format, which any of its libraries can open.

8 bytes of length, a JSON header with each array's type, shape and place, and the arrays one after the other. Many
processes share the pages of one map, nothing is unpickled, and a file that was cut off does not match its header.
"""

import json
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy

from benchmarks.common.files import replace_whole

DTYPES = {"I64": numpy.dtype("<i8"), "I32": numpy.dtype("<i4"), "U32": numpy.dtype("<u4"), "U8": numpy.dtype("u1")}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8
LARGEST_HEADER = 100_000_000  # bytes, as the format's own libraries allow

Arrays = dict[str, numpy.ndarray]
Layout = dict[str, tuple[numpy.dtype, tuple[int, ...]]]


class Damaged(Exception):
    """The file is not what its header says; the text says how."""


def header(metadata: dict[str, str], layout: Layout, room: int = 0) -> bytes:
    """What comes before arrays of these types and shapes, in this order. room: bytes to fill, 0: as few as it takes.

    The arrays are mapped as they lie: put those of larger elements first.
    """
    entries, place = {"__metadata__": metadata}, 0
    for name, (dtype, shape) in layout.items():
        end = place + dtype.itemsize * math.prod(shape)
        entries[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    length = max(room - 8, -(-len(text) // ALIGNED) * ALIGNED)
    assert room == 0 or len(text) <= room - 8, "the header outgrew its room"
    return length.to_bytes(8, "little") + text.ljust(length)


def checksum(metadata: dict[str, str], arrays: Arrays) -> str:
    """CRC-32 of the metadata, but for a `checksum` in it, and of the arrays."""
    words = {name: value for name, value in metadata.items() if name != "checksum"}
    value = zlib.crc32(json.dumps(words, sort_keys=True).encode())
    for name in sorted(arrays):
        value = zlib.crc32(numpy.ascontiguousarray(arrays[name]), value)
    return f"{value:08x}"


def write_arrays(path: Path, metadata: dict[str, str], arrays: Arrays) -> None:
    """A new file, in place of an old one, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        file.write(header(metadata, {name: (array.dtype, array.shape) for name, array in arrays.items()}))
        for array in arrays.values():
            file.write(numpy.ascontiguousarray(array).data)

    replace_whole(path, write)


def map_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """The metadata and the mapped arrays of a file. Raises OSError, or Damaged where it is not whole."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise Damaged("it ends within its header")
        try:
            entries = json.loads(file.read(length))
            metadata = dict(entries.pop("__metadata__"))
            layout = [
                (name, DTYPES[one["dtype"]], tuple(one["shape"]), *one["data_offsets"]) for name, one in entries.items()
            ]
            right = all(dtype.itemsize * math.prod(shape) == end - begin for _, dtype, shape, begin, end in layout)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Damaged("its header is not readable") from None
    if not right or 8 + length + max((end for *_, end in layout), default=0) != size:
        raise Damaged(f"its {size} bytes are not what its header says")
    # copy-on-write, so that torch takes the arrays without a warning; nobody writes
    whole = numpy.memmap(path, mode="c", dtype=numpy.uint8)
    data = whole[8 + length :].view(numpy.ndarray)
    return metadata, {name: data[begin:end].view(dtype).reshape(shape) for name, dtype, shape, begin, end in layout}
