"""Images in tar files: WebDataset's shards, and ILSVRC2012's tars, of which that of train holds a tar a class.

Bytes are read by their place; nothing is extracted.
"""

import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from benchmarks.common.errors import UserError
from benchmarks.common.listing import is_hidden, why_left_out
from scripts.data.entries import Entry, checked_class, class_of_label, file_name, image_entry, refuse, without_image
from scripts.data.labels import classes_by_number

MAX_END_BYTES = tarfile.RECORDSIZE + tarfile.BLOCKSIZE  # of zeros at the end of an archive
LINK = "is a link or a sparse file: make the tar again with --dereference --hard-dereference"


class Member(NamedTuple):
    """begin: the place of its first byte in the archive's file."""

    name: str
    begin: int
    size: int
    is_file: bool


def read_members(file: BinaryIO, shard_name: str, begin: int = 0, end: int | None = None) -> Iterator[Member]:
    """Without folders. begin, end: bytes of `file`; None: its end. Raises UserError for a name that leads out of the
    folder, and for an archive that is damaged or goes on after its end: a download whose space was allocated ends in
    zeros, which is how an archive ends."""
    end = os.fstat(file.fileno()).st_size if end is None else end
    file.seek(begin)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while found := archive.next():
                if found.offset_data + found.size > end:
                    raise UserError(f"{shard_name} is cut off in {found.name!r}; is the download whole?")
                file_name(found.name, shard_name)
                if not found.isdir():
                    is_file = found.isfile() and not found.issparse()
                    yield Member(found.name, found.offset_data, found.size, is_file)
            place = archive.offset
    except (tarfile.TarError, ValueError) as error:
        raise UserError(f"{shard_name} cannot be read: {error}; is the download whole, and no .gz?") from None
    rest = read_at(file, place, max(end - place, 0))
    if not rest or len(rest) > MAX_END_BYTES or any(rest):
        raise UserError(f"{shard_name} ends after {place - begin} of its {end - begin} bytes; is the download whole?")


def read_at(file: BinaryIO, begin: int, size: int) -> bytes:
    return os.pread(file.fileno(), size, begin)


def read_webdataset(path: Path, shard_name: str, classes: list[str]) -> Iterator[Entry]:
    """A sample: neighbours of one name, an image and a .cls."""
    with open(path, "rb") as file:
        hidden: list[Entry] = []

        def visible() -> Iterator[Member]:  # macOS puts hidden files between the parts of a sample
            for member in read_members(file, shard_name):
                if any(map(is_hidden, member.name.split("/"))):
                    hidden.append(Entry(member.name, left_out="hidden"))
                else:
                    yield member

        for key, parts in itertools.groupby(visible(), lambda member: os.path.splitext(member.name)[0]):
            yield read_sample(file, key, [*parts], classes, shard_name)
        yield from hidden


def read_sample(file: BinaryIO, key: str, parts: list[Member], classes: list[str], shard_name: str) -> Entry:
    """Text beside its label, such as .json, is not read."""
    labels = [part for part in parts if part.name.lower().endswith(".cls")]
    images = [part for part in parts if part not in labels and not why_left_out(os.path.basename(part.name))]
    if links := [part.name for part in parts if not part.is_file]:
        return Entry(links[0], refused=LINK)
    if not labels and not images:
        return Entry(key, left_out="text")
    if len(labels) != 1 or len(images) != 1:
        return Entry(key, refused="is no sample: that is one image and one .cls of the same name, one after the other")
    (label,), (image,) = labels, images
    text = read_at(file, label.begin, label.size).decode(errors="replace").strip()
    number = int(text) if re.fullmatch("-?[0-9]+", text) else text
    named = class_of_label(number, classes, f"{shard_name}: {label.name!r}")
    return image_entry(image.name, named, read_at(file, image.begin, image.size), f"{shard_name}: {key!r}.cls")


def list_class_tars(path: Path) -> list[tuple[str, int, int]]:
    """(class, first byte, bytes) in ILSVRC2012_img_train.tar."""
    found: list[tuple[str, int, int]] = []
    refused: list[Entry] = []
    with open(path, "rb") as file:
        for member in read_members(file, path.name):
            stem, ending = os.path.splitext(file_name(member.name, path.name))
            if without_image(member.name):
                continue
            if ending == ".tar":
                found.append((checked_class(stem, path.name), member.begin, member.size))
            else:
                refused.append(Entry(member.name, refused="is no tar of a class"))
    refuse(refused, path.name)
    return found


def read_class_tar(path: Path, shard_name: str, named: str, begin: int = 0, size: int | None = None) -> Iterator[Entry]:
    """A file, or size bytes from begin on of the tar of train."""
    with open(path, "rb") as file:
        for member in read_members(file, shard_name, begin, None if size is None else begin + size):
            yield member_entry(file, member, named, shard_name)


def member_entry(file: BinaryIO, member: Member, named: str, shard_name: str) -> Entry:
    if reason := without_image(member.name):
        return Entry(member.name, left_out=reason)
    if not member.is_file:
        return Entry(member.name, refused=LINK)
    return image_entry(member.name, named, read_at(file, member.begin, member.size), shard_name)


def read_flat_tar(path: Path, classes: list[str]) -> Iterator[Entry]:
    """ILSVRC2012_img_val.tar. classes: by the number in the name."""
    with open(path, "rb") as file:
        members = [*read_members(file, path.name)]
        names = [member.name for member in members if not without_image(member.name)]
        class_of = classes_by_number(names, classes, path.name)
        for member in members:
            yield member_entry(file, member, class_of.get(member.name, ""), path.name)
