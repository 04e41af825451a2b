"""The files in a tar: names, places and sizes. Nothing is extracted."""

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from benchmarks.common.errors import UserError
from scripts.data.entries import file_name

BLOCK_BYTES = tarfile.BLOCKSIZE
END_BLOCK = bytes(BLOCK_BYTES)


class Member(NamedTuple):
    """A file: its name, the place of its first byte in the archive's file, and its bytes."""

    name: str
    begin: int
    size: int


def read_members(file: BinaryIO, shard_name: str, begin: int, end: int) -> Iterator[Member]:
    """The files of the archive in bytes begin to end of `file`; folders and links are left out.

    Raises UserError for a name that leads out of the folder, and for an archive that is cut off or damaged.
    """
    file.seek(begin)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while found := archive.next():
                if found.isfile():
                    file_name(found.name, shard_name)
                    if found.offset_data + found.size > end:
                        raise UserError(f"{shard_name} is cut off in {found.name!r}; is the download whole?")
                    yield Member(found.name, found.offset_data, found.size)
            where = archive.offset - begin
            if os.pread(file.fileno(), BLOCK_BYTES, archive.offset) != END_BLOCK or archive.offset >= end:
                raise UserError(f"{shard_name} is cut off or damaged after {where} bytes; is the download whole?")
    except (tarfile.TarError, ValueError) as error:
        raise UserError(f"{shard_name} cannot be read: {error}; is the download whole?") from None
