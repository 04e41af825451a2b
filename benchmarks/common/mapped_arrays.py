"""Arrays in one file that is mapped, not read, in the safetensors format.

The file has 8 bytes of length, a JSON header with each array's type, shape and place, and the arrays one after the
other. Many processes share the mapped pages. A truncated file does not match its header.
"""

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy

from benchmarks.common.files import replace_atomically

DTYPES: dict[str, numpy.dtype[Any]] = {
    "I64": numpy.dtype("<i8"),
    "I32": numpy.dtype("<i4"),
    "U32": numpy.dtype("<u4"),
    "U8": numpy.dtype("u1"),
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNED = 8
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
