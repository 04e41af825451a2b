"""Images in tar files: WebDataset's shards, and ILSVRC2012's tars, of which that of train holds a tar a class.

Each file's bytes are read by their place, and nothing is extracted. All raise as read_members does, and OSError.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from benchmarks.common.errors import UserError
from scripts.data.entries import (
    JPEG_ENDINGS,
    SourceImage,
    class_name,
    class_of_label,
    file_name,
    image_name,
)
from scripts.data.labels import classes_by_place
from scripts.data.tar_members import Member, read_members


def read_content(file: BinaryIO, member: Member, shard_name: str) -> bytes:
    """Raises UserError where it is cut off."""
    content = os.pread(file.fileno(), member.size, member.begin)
    if len(content) < member.size:
        raise UserError(f"{shard_name} is cut off in {member.name!r}; is the download whole?")
    return content


def read_webdataset(path: Path, shard_name: str, classes: list[str]) -> Iterator[SourceImage]:
    """The samples of a shard: neighbours whose names are equal up to the first dot, of which .jpg and .cls are read."""
    with open(path, "rb") as file:
        key, image, label = "", None, None
        for member in read_members(file, shard_name, 0, os.fstat(file.fileno()).st_size):
            folder, _, name = member.name.rpartition("/")
            stem, _, ending = name.partition(".")
            if f"{folder}/{stem}" != key:
                if key:
                    yield from finish_sample(key, image, label, classes, shard_name)
                key, image, label = f"{folder}/{stem}", None, None
            if f".{ending.lower()}" in JPEG_ENDINGS:
                image = read_content(file, member, shard_name)
            elif ending.lower() == "cls":
                label = read_content(file, member, shard_name)
        if key:
            yield from finish_sample(key, image, label, classes, shard_name)


def finish_sample(
    key: str, image: bytes | None, label: bytes | None, classes: list[str], shard_name: str
) -> Iterator[SourceImage]:
    """The image of a sample; none where it has neither an image nor a label. Raises UserError where one is missing."""
    if image is None and label is None:
        return
    if image is None or label is None:
        raise UserError(f"{shard_name}: the sample {key.lstrip('/')!r} has no {'.cls' if image else '.jpg'}")
    text = label.decode(errors="replace").strip()
    label_or_name = int(text) if re.fullmatch("-?[0-9]+", text) else text
    named = class_of_label(label_or_name, classes, f"{shard_name}: {key.lstrip('/')!r}.cls")
    yield SourceImage(named, image_name(file_name(f"{key.rpartition('/')[2]}.jpg", shard_name), shard_name), image)


def list_class_tars(path: Path) -> list[tuple[str, int, int]]:
    """(class, first byte, bytes) of each tar in ILSVRC2012_img_train.tar. Raises UserError for other content."""
    found = []
    with open(path, "rb") as file:
        for member in read_members(file, path.name, 0, os.fstat(file.fileno()).st_size):
            stem, ending = os.path.splitext(file_name(member.name, path.name))
            if ending != ".tar":
                raise UserError(f"{path.name}: {member.name!r} is no tar of a class")
            found.append((class_name(stem, path.name), member.begin, member.size))
    return found


def read_class_tar(path: Path, shard_name: str, named: str, begin: int, size: int) -> Iterator[SourceImage]:
    """The images of one class, from its tar in bytes begin to begin + size of the tar of train."""
    with open(path, "rb") as file:
        for member in read_members(file, shard_name, begin, begin + size):
            name = image_name(file_name(member.name, shard_name), shard_name)
            yield SourceImage(named, name, read_content(file, member, shard_name))


def read_flat_tar(path: Path, classes: list[str]) -> Iterator[SourceImage]:
    """The images of ILSVRC2012_img_val.tar. classes: of each image, in the order of the images' names."""
    shard_name = path.name
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        names = [member.name for member in read_members(file, shard_name, 0, size)]
        class_of = classes_by_place(names, classes, shard_name)
        for member in read_members(file, shard_name, 0, size):
            name = image_name(file_name(member.name, shard_name), shard_name)
            yield SourceImage(
                class_name(class_of[member.name], shard_name), name, read_content(file, member, shard_name)
            )
