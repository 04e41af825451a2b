"""Damage that is done to real files: strategies of hypothesis, so that what fails is made small.

edited(seeds, tokens)        bytes of one of the seeds with up to four edits
edited_arrays(seeds)         a safetensors file whose header or tables say something else, often with a right checksum
"""

import json
import struct
from collections.abc import Sequence

import numpy
from hypothesis import strategies as st

from benchmarks.common.data.mapped_arrays import ALIGNED, DTYPES, checksum

PLACES = st.integers(0, 2**16 - 1)  # a part of the length, in 65536ths
HUGE = st.sampled_from(
    [0, 1, 2**7 - 1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1]
)
FORMATS = st.sampled_from(["<B", "<H", ">H", "<I", ">I", "<Q", ">Q"])
LARGEST = 4_000_000  # bytes: duplication stops here


def _flip(content: bytes, place: int, bit: int) -> bytes:
    out = bytearray(content)
    if out:
        out[place * len(out) >> 16] ^= 1 << bit
    return bytes(out)


def _cut(content: bytes, place: int) -> bytes:
    return content[: place * len(content) >> 16]


def _drop(content: bytes, place: int, length: int) -> bytes:
    start = place * len(content) >> 16
    return content[:start] + content[start + length :]


def _repeat(content: bytes, place: int, length: int, times: int) -> bytes:
    start = place * len(content) >> 16
    return (content[:start] + content[start : start + length] * times + content[start + length :])[:LARGEST]


def _number(content: bytes, place: int, kind: str, value: int) -> bytes:
    """Write a number over what is there."""
    packed = struct.pack(kind, value % (1 << 8 * struct.calcsize(kind)))
    start = place * len(content) >> 16
    return content[:start] + packed + content[start + len(packed) :]


def _segment(content: bytes, place: int, value: int) -> bytes:
    """The length of a JPEG's segment, or the number after a marker."""
    marks = [at for at in range(len(content) - 4) if content[at] == 0xFF and content[at + 1] not in (0, 0xFF)][:2000]
    if not marks:
        return content
    at = marks[place * len(marks) >> 16] + 2
    return content[:at] + struct.pack(">H", value % 2**16) + content[at + 2 :]


def _put(content: bytes, place: int, token: bytes, over: bool) -> bytes:
    start = place * len(content) >> 16
    return content[:start] + token + content[start + (len(token) if over else 0) :]


def _word(content: bytes, place: int, token: bytes) -> bytes:
    """A token in the place of a word, of text that has words between marks."""
    starts = [at + 1 for at, one in enumerate(content[:50_000]) if one in b" ,:\n[{("]
    if not starts:
        return token
    start = starts[place * len(starts) >> 16]
    end = next((at for at in range(start, len(content)) if content[at] in b" ,:\n]})"), len(content))
    return content[:start] + token + content[end:]


def _head_of(content: bytes, other: bytes, length: int) -> bytes:
    """The beginning of another file in the place of this one's."""
    return other[:length] + content[length:]


def _line_twice(content: bytes, place: int, times: int) -> bytes:
    lines = content.split(b"\n")
    at = place * len(lines) >> 16
    return b"\n".join(lines[: at + 1] + [lines[at]] * times + lines[at + 1 :])[:LARGEST]


def _line_away(content: bytes, place: int) -> bytes:
    lines = content.split(b"\n")
    del lines[place * len(lines) >> 16]
    return b"\n".join(lines)


def edits(seeds: Sequence[bytes], tokens: Sequence[bytes]) -> st.SearchStrategy:
    """One edit: (function, its arguments)."""
    token = st.sampled_from([*tokens, b"\0", b"\xff" * 8]) | st.binary(max_size=12)
    binary = [
        st.tuples(st.just(_flip), PLACES, st.integers(0, 7)),
        st.tuples(st.just(_cut), PLACES),
        st.tuples(st.just(_drop), PLACES, st.integers(1, 64)),
        st.tuples(st.just(_repeat), PLACES, st.integers(1, 4096), st.integers(2, 50)),
        st.tuples(st.just(_number), PLACES, FORMATS, HUGE),
        st.tuples(st.just(_segment), PLACES, HUGE),
        st.tuples(st.just(_put), PLACES, token, st.booleans()),
        st.tuples(st.just(_head_of), st.sampled_from(list(seeds)), st.integers(1, 512)),
    ]
    text = [
        st.tuples(st.just(_word), PLACES, token),
        st.tuples(st.just(_word), PLACES, token),
        st.tuples(st.just(_line_twice), PLACES, st.integers(1, 3)),
        st.tuples(st.just(_line_away), PLACES),
    ]
    return st.one_of(*binary, *(text if tokens else []))


def edited(seeds: Sequence[bytes], tokens: Sequence[bytes] = ()) -> st.SearchStrategy[bytes]:
    """Bytes of one of the seeds with one to four edits. tokens: words that mean something in this format."""
    return st.builds(_apply, st.sampled_from(list(seeds)), st.lists(edits(seeds, tokens), min_size=1, max_size=4))


def _apply(content: bytes, changes: list[tuple]) -> bytes:
    for change, *arguments in changes:
        content = change(content, *arguments)
    return content


# ---- safetensors ---------------------------------------------------------------------------------------------------

ODD = [-1, 0, 1, 2, 7, 2**31, 2**62, 2**63, 2**70, 1e308, None, "", "x", "../../x", [], {}, [0], [2**40, 2**40], True]


def edited_arrays(seeds: Sequence[bytes], without: Sequence[str] = ()) -> st.SearchStrategy[bytes]:
    """A file of arrays.py in which one to three things of the header or of the tables are others.

    without: arrays that its checksum leaves out. Most get the right checksum, so that what comes after it is tried.
    """
    of_header = st.tuples(st.just("header"), PLACES, st.sampled_from(ODD))
    of_metadata = st.tuples(st.just("metadata"), PLACES, st.sampled_from([*ODD, "[]", "{}", '["a"]', "[1]", "null"]))
    of_table = st.tuples(st.just("table"), PLACES, PLACES, st.sampled_from([-1, 0, 1, 2**31 - 1, 2**40, -(2**62)]))
    changes = st.lists(of_metadata | of_table | of_table | of_header, min_size=1, max_size=3)
    right = st.sampled_from([True, True, True, False])
    return st.builds(_change_arrays, st.sampled_from(list(seeds)), changes, right, st.just(tuple(without)))


def _change_arrays(content: bytes, changes: list[tuple], right: bool, without: tuple[str, ...]) -> bytes:
    length = int.from_bytes(content[:8], "little")
    entries, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    metadata = entries.pop("__metadata__")
    arrays = {
        name: numpy.frombuffer(data, numpy.uint8)[one["data_offsets"][0] : one["data_offsets"][1]]
        .view(DTYPES[one["dtype"]])
        .reshape(one["shape"])
        for name, one in entries.items()
    }
    for kind, place, *rest in changes:
        if kind == "metadata":
            metadata[list(metadata)[place * len(metadata) >> 16]] = rest[0]
        elif kind == "table":
            _set_one([array for name, array in arrays.items() if name not in without], place, *rest)
    if right:
        metadata["checksum"] = checksum(metadata, {n: array for n, array in arrays.items() if n not in without})
    for kind, place, *rest in changes:
        if kind == "header":
            name = list(entries)[place * len(entries) >> 16]
            key = ("dtype", "shape", "data_offsets")[place % 3]
            entries[name] = entries[name] | {key: rest[0]}
    text = json.dumps({"__metadata__": metadata} | entries).encode()
    text = text.ljust(-(-len(text) // ALIGNED) * ALIGNED)
    return len(text).to_bytes(8, "little") + text + bytes(data)


def _set_one(arrays: list[numpy.ndarray], which: int, place: int, value: int) -> None:
    array = arrays[which * len(arrays) >> 16].reshape(-1)
    if array.size:
        bounds = numpy.iinfo(array.dtype)
        array[place * array.size >> 16] = min(max(value, bounds.min), bounds.max)
