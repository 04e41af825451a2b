"""What every source is read as: shards, which yield images, and the rules for the names that a source gives.

A name from an archive becomes a file's or a class folder's name only if it is one plain path component.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.common.errors import UserError
from benchmarks.common.listing import IMG_EXTENSIONS

SPLIT_OF_WORD = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Words in a shard's path, and the split that each means."""
NUMBERS_DO = "; numbers do where only the speed matters: seq -w 0 999 > classes.txt"
CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
JPEG_ENDINGS = (".jpg", ".jpeg")


@dataclass(frozen=True, slots=True)
class SourceImage:
    """One image: the class folder and the file name that it gets, and the file's bytes."""

    class_name: str
    name: str
    content: bytes | memoryview


@dataclass(frozen=True)
class SourceShard:
    """A part of a source that one thread reads from its beginning to its end.

    name: for messages and for the journal. split: "train" or "val". num_bytes: what it has in the source. time_ns: its
    file's modification time; 0 for folders. read: yields its images, and raises UserError and OSError.
    """

    name: str
    split: str
    num_bytes: int
    time_ns: int
    read: Callable[[], Iterator[SourceImage]]


@dataclass(frozen=True)
class Source:
    """kind: in words, such as "WebDataset"."""

    kind: str
    shards: list[SourceShard]


def split_of(path: str) -> str:
    """train, val or test, by the words of a shard's path below the source. Raises UserError where none is one."""
    for text in reversed(path.lower().split("/")):
        for word in re.split(r"[^a-z]+", text):
            if word in SPLIT_OF_WORD:
                return SPLIT_OF_WORD[word]
    raise UserError(f"{path!r} does not say whether it is of train or of val; put it into a folder named train or val")


def file_name(path: str, shard_name: str) -> str:
    """The last component of a path in a shard. Raises UserError for a path that is absolute or has .. in it."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise UserError(f"{shard_name}: the name {path!r} leads out of the folder, and is not used")
    return parts[-1]


def image_name(name: str, shard_name: str) -> str:
    """The name under which an image is stored: JPEGs end in .JPEG, as ImageNet's do. Raises UserError for no image."""
    stem, ending = os.path.splitext(name)
    if ending.lower() in JPEG_ENDINGS:
        return f"{stem}.JPEG"
    if ending.lower() in IMG_EXTENSIONS:
        return name
    raise UserError(f"{shard_name}: {name!r} is no image; images end in {', '.join(IMG_EXTENSIONS)}")


def class_name(name: str, shard_name: str) -> str:
    """A class's name as its folder's. Raises UserError for words such as "tench, Tinca tinca": wnids are needed."""
    if not CLASS_NAME.fullmatch(name):
        raise UserError(
            f"{shard_name}: the class {name[:100]!r} cannot be a folder; name by --classes a file that has the "
            f"classes' names (ImageNet: the wnids), one a line, in the order of the labels{NUMBERS_DO}"
        )
    return name


def class_of_label(label: object, classes: list[str], shard_name: str) -> str:
    """The name of a label: a number is a place in `classes`, and text is the name itself.

    Raises UserError for a number that has no name.
    """
    if isinstance(label, str):
        return class_name(label, shard_name)
    if not classes:
        raise UserError(
            f"{shard_name}: its labels are numbers, and nothing names them; name by --classes a file that has the "
            f"classes' names (ImageNet: the wnids), one a line, in the order of the labels{NUMBERS_DO}"
        )
    if not isinstance(label, int) or not 0 <= label < len(classes):
        raise UserError(f"{shard_name}: the label {label!r} is none of the {len(classes)} classes")
    return class_name(classes[label], shard_name)
