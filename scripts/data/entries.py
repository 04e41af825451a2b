"""What every source is read as: shards of images."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.common.errors import UserError
from benchmarks.common.listing import FIRST_BYTES, IMG_EXTENSIONS

CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
WNID = re.compile(r"n\d{8}")
JPEG_ENDINGS = (".jpg", ".jpeg", ".jfif", ".jpe")
NAME_THE_CLASSES = (
    "name by --classes a file that has the classes' names (ImageNet: the wnids), one a line, in the order of the "
    "labels; numbers do where only the speed matters: seq -w 0 999 > classes.txt"
)


class NamedImage(NamedTuple):
    """class_name, name: of the folder and file in TO."""

    class_name: str
    name: str
    content: bytes


@dataclass(frozen=True)
class Shard:
    """What one thread reads."""

    name: str
    split: str
    num_bytes: int
    read: Callable[[], Iterator[NamedImage]]


def named_image(path: str, class_name: str, content: bytes, where: str) -> NamedImage:
    """Raises UserError where it is no image, or has no name for a folder and a file."""
    name = file_name(path, where)
    if not content.startswith(tuple(FIRST_BYTES.values())):
        raise UserError(f"{where}: {path!r} is no image: it begins as neither a JPEG nor a PNG; mend or remove it")
    return NamedImage(checked_class(class_name, where), image_name(name, content), content)


def file_name(path: str, where: str) -> str:
    """The last part. Raises UserError for a path that leads out of the folder."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise UserError(f"{where}: the name {path!r} leads out of the folder, and is not used")
    return parts[-1]


def image_name(name: str, content: bytes) -> str:
    """JPEGs end in .JPEG, as ImageNet's do."""
    stem, ending = os.path.splitext(name)
    if ending.lower() in JPEG_ENDINGS:
        return f"{stem}.JPEG"
    if ending.lower() in IMG_EXTENSIONS:
        return name
    return name + (".JPEG" if content.startswith(FIRST_BYTES["JPEG"]) else ".png")


def checked_class(name: str, where: str) -> str:
    """Raises UserError for a name that is none of a folder, such as "tench, Tinca tinca"."""
    if not CLASS_NAME.fullmatch(name):
        raise UserError(f"{where}: the class {name[:100]!r} cannot be a folder; {NAME_THE_CLASSES}")
    return name


def class_of_label(label: object, classes: list[str], where: str) -> str:
    """A number is a place in `classes`, text is the name itself. Raises UserError for a label that is none of them."""
    if isinstance(label, str) and (not classes or label in classes):
        return label
    if not classes:
        raise UserError(f"{where}: its labels are numbers, and nothing names them; {NAME_THE_CLASSES}")
    if not isinstance(label, int) or not 0 <= label < len(classes):
        raise UserError(f"{where}: the label {label!r} is none of the {len(classes)} classes")
    return classes[label]
