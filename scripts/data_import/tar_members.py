"""The files in a tar: names, places and sizes. Nothing is extracted.

Archives of images are plain files and folders, and nearly nothing else. Their headers are read here. From the first
header of any other kind on, and at the archive's end, tarfile reads: it needs four times as long for a header.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from benchmarks.common.system.errors import UserError
from scripts.data_import.class_lists import refuse_backward
from scripts.data_import.source_images import file_name

BLOCK_BYTES = tarfile.BLOCKSIZE
END_BLOCK = bytes(BLOCK_BYTES)
WINDOW_BYTES = 8 * BLOCK_BYTES  # that are read at once: the headers of an image and of its label
HEADER = re.compile(
    rb"(?P<name>.{100})(?:[0-7]{7}[\0 ]){3}(?P<size>[0-7]{11})[\0 ][0-7]{11}[\0 ](?P<checksum>[0-7]{6})\0 (?P<kind>.)"
    rb".{100}(?:ustar\x0000|ustar  \0).{64}(?:[0-7]{7}\0|\0{8}){2}\0{167}",
    re.DOTALL,
)
"""name, mode, uid, gid, size, time, checksum, kind, link, magic of POSIX or GNU, user and group, device, and no prefix
of the name. Numbers are as GNU tar and Python write them."""
CHECKSUM_PLACE = slice(148, 156)  # which counts as spaces
PAX_TIMES = re.compile(rb"(?:[0-9]{2} [acm]time=[0-9.]+\n)+")
"""All that Python's tarfile writes before a file whose time is a float, as WebDataset's writer does."""


class Member(NamedTuple):
    """A plain file: its name, the place of its first byte in the archive's file, and its bytes."""

    name: str
    begin: int
    size: int


class Header(NamedTuple):
    """begin: the place of the bytes that the header is of."""

    kind: bytes
    name: bytes
    begin: int
    size: int

    @property
    def end(self) -> int:
        """The place of the next header."""
        return self.begin + -(-self.size // BLOCK_BYTES) * BLOCK_BYTES


class Window:
    """Reads small parts of a file, most of them one after the other."""

    def __init__(self, descriptor: int):
        self._descriptor, self._begin, self._content = descriptor, 0, b""

    def read(self, begin: int, num_bytes: int) -> bytes:
        """At most WINDOW_BYTES; fewer than asked for at the end of the file. Raises OSError."""
        first = begin - self._begin
        if not 0 <= first <= len(self._content) - num_bytes:
            self._begin, self._content, first = begin, os.pread(self._descriptor, WINDOW_BYTES, begin), 0
        return self._content[first : first + num_bytes]


def read_members(file: BinaryIO, shard_name: str, begin: int, end: int) -> Iterator[Member]:
    """The regular files of the archive in bytes begin to end of `file`; folders are left out.

    Raises UserError for a link, a device or any other kind, for a name that leads out of the folder, and for an archive
    that is cut off or damaged.
    """
    window, offset = Window(file.fileno()), begin
    while offset < end and (header := read_plain_header(window, offset)):
        offset = header.end
        if header.kind == tarfile.REGTYPE:
            member = Member(os.fsdecode(header.name), header.begin, header.size)
            check_member(member, shard_name, end)
            yield member
    yield from read_by_tarfile(file, shard_name, offset, begin, end)


def read_plain_header(window: Window, offset: int) -> Header | None:
    """The header at `offset`, if it is of a plain file or folder, with or without times before it; else None."""
    header = parse_header(window.read(offset, BLOCK_BYTES), offset)
    if header and header.kind == tarfile.XHDTYPE:
        times = window.read(header.begin, header.size) if header.size <= BLOCK_BYTES else b""
        if not PAX_TIMES.fullmatch(times):
            return None
        header = parse_header(window.read(header.end, BLOCK_BYTES), header.end)
    if header and (header.kind == tarfile.REGTYPE or (header.kind == tarfile.DIRTYPE and not header.size)):
        return header
    return None


def parse_header(block: bytes, offset: int) -> Header | None:
    """None for a block that is no header, or whose fields are not written in the usual way."""
    found = HEADER.fullmatch(block)
    if not found or sum(block) - sum(block[CHECKSUM_PLACE]) + 8 * ord(" ") != int(found["checksum"], 8):
        return None
    return Header(found["kind"], found["name"].partition(b"\0")[0], offset + BLOCK_BYTES, int(found["size"], 8))


def read_by_tarfile(file: BinaryIO, shard_name: str, offset: int, begin: int, end: int) -> Iterator[Member]:
    """What read_members gives, from `offset` on."""
    file.seek(offset)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while found := archive.next():
                refuse_backward(archive, found, shard_name)
                if found.isdir():
                    continue
                if not found.isreg() or found.issparse():
                    raise UserError(
                        f"{shard_name}: {found.name!r} is a link, a device or a sparse file, not a plain file"
                    )
                member = Member(found.name, found.offset_data, found.size)
                check_member(member, shard_name, end)
                yield member
            where = archive.offset - begin
            if os.pread(file.fileno(), BLOCK_BYTES, archive.offset) != END_BLOCK or archive.offset >= end:
                raise UserError(f"{shard_name} is cut off or damaged after {where} bytes; is the download whole?")
    except (tarfile.TarError, ValueError, MemoryError, RecursionError) as error:
        raise UserError(f"{shard_name} cannot be read: {error}; is the download whole?") from None


def check_member(member: Member, shard_name: str, end: int) -> None:
    """Raises UserError for a name that leads out of the folder, and for a file that ends after `end`."""
    file_name(member.name, shard_name)
    if member.begin + member.size > end:
        raise UserError(f"{shard_name} is cut off in {member.name!r}; is the download whole?")
