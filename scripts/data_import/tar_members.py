"""The files in a tar: names, places and sizes. Nothing is extracted."""

import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from benchmarks.common.system.errors import UserError
from scripts.data_import.class_lists import refuse_backward
from scripts.data_import.source_images import file_name

BLOCK_BYTES = tarfile.BLOCKSIZE
END_BLOCK = bytes(BLOCK_BYTES)


class Member(NamedTuple):
    """A plain file: its name, the place of its first byte in the archive's file, and its bytes."""

    name: str
    begin: int
    size: int


def read_members(file: BinaryIO, shard_name: str, begin: int, end: int) -> Iterator[Member]:
    """The regular files of the archive in bytes begin to end of `file`; folders are left out.

    Raises UserError for a link, a device or any other kind, for a name that leads out of the folder, and for an archive
    that is cut off or damaged.
    """
    file.seek(begin)
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
