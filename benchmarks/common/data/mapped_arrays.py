"""Arrays in one file that is mapped, not read, in the safetensors format.

The file has 8 bytes of length, a JSON header with each array's type, shape and place, and the arrays one after the
other. Many processes share the mapped pages. Nothing is unpickled. A truncated file does not match its header.
"""

import errno
import json
import math
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from benchmarks.common.system.files import open_regular_file, replace_atomically

DTYPES: dict[str, numpy.dtype[Any]] = {
    "I64": numpy.dtype("<i8"),
    "I32": numpy.dtype("<i4"),
    "U32": numpy.dtype("<u4"),
    "U8": numpy.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8
LARGEST_HEADER_BYTES = 1 << 25  # JSON takes 20 times its bytes as Python objects; 1,000 classes take 0.1 MB
# What a bus error (SIGBUS) means here, for messages.
TRUNCATED_FILE_HELP = (
    "a file that it had mapped was cut short, or /dev/shm is full; run ./bench data pack again for a packed file; "
    "an index of the images is written anew by the next start"
)

Arrays = dict[str, numpy.ndarray]
ArrayShapes = dict[str, tuple[numpy.dtype[Any], tuple[int, ...]]]


class DamagedFile(Exception):
    """The file is not what its header says; the text says how."""


def file_header(metadata: dict[str, str], arrays: ArrayShapes, reserved_bytes: int = 0) -> bytes:
    """The bytes before arrays of these types and shapes, in this order.

    reserved_bytes: the header is padded to this length; 0: it is as short as it can be.

    The arrays are mapped as they lie: put those of larger elements first.
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


def checksum(metadata: dict[str, str], arrays: Arrays) -> str:
    """CRC-32 of the metadata, but for a `checksum` in it, and of the arrays."""
    texts = {name: text for name, text in metadata.items() if name != "checksum"}
    value = zlib.crc32(json.dumps(texts, sort_keys=True).encode())
    for name in sorted(arrays):
        value = zlib.crc32(numpy.ascontiguousarray(arrays[name]).data, value)
    return f"{value:08x}"


def write_arrays(path: Path, metadata: dict[str, str], arrays: Arrays) -> None:
    """A new file, in place of an old one, whole or not at all. Raises OSError, also for metadata that are too long."""
    header = file_header(metadata, {name: (array.dtype, array.shape) for name, array in arrays.items()})
    if len(header) > LARGEST_HEADER_BYTES:
        raise OSError(errno.EFBIG, f"a header of {len(header)} bytes is more than {LARGEST_HEADER_BYTES}", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)

    def write(file: BinaryIO) -> None:
        file.write(header)
        for array in arrays.values():
            file.write(numpy.ascontiguousarray(array).data)

    replace_atomically(path, write)


def map_arrays(path: Path) -> tuple[dict[str, str], Arrays]:
    """The metadata and the mapped arrays of a file. Raises OSError, or DamagedFile where it is not whole.

    Whatever the header says, nothing outside of the file is read, and memory is taken for the header only. The caller
    checks what the arrays hold. If the file is cut short later, SIGBUS ends the process that reads beyond its end.
    """
    with open_regular_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER_BYTES):
            raise DamagedFile("it ends within its header")
        try:
            metadata, placed_arrays = _place_arrays(json.loads(file.read(length)), size - 8 - length)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DamagedFile("its header is not readable") from None
        if placed_arrays is None:
            raise DamagedFile(f"its {size} bytes are not what its header says")
        try:
            # copy-on-write, so that torch takes the arrays without a warning; nobody writes
            whole = numpy.memmap(file, mode="c", dtype=numpy.uint8, shape=(size,))
        except ValueError:
            raise DamagedFile(f"it no longer has its {size} bytes") from None
    data = whole[8 + length :].view(numpy.ndarray)
    return metadata, {
        name: data[begin:end].view(dtype).reshape(shape) for name, dtype, shape, begin, end in placed_arrays
    }


Placed = tuple[str, numpy.dtype[Any], tuple[int, ...], int, int]
"""An array of a file: name, dtype, shape, first byte, and the byte after the last."""


def _place_arrays(entries: dict[str, Any], num_bytes: int) -> tuple[dict[str, str], list[Placed] | None]:
    """The metadata, and each array's place; None where the arrays do not fill `num_bytes`
    without gaps. Raises errors of several types for a header of another format."""
    metadata = dict(entries.pop("__metadata__").items())
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("the format's metadata are texts")
    placed_arrays: list[Placed] = []
    expected_begin = 0
    for name, one in entries.items():
        dtype, shape, (begin, end) = DTYPES[one["dtype"]], tuple(one["shape"]), one["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)) or len(shape) > 2:
            raise ValueError("an offset or a shape is no number")
        if begin != expected_begin or dtype.itemsize * math.prod(shape) != end - begin or end > num_bytes:
            return metadata, None
        placed_arrays.append((name, dtype, shape, begin, end))
        expected_begin = end
    return metadata, placed_arrays if expected_begin == num_bytes else None
