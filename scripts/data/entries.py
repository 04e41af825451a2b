"""What every source is read as: shards of entries."""

import collections
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.common.errors import UserError
from benchmarks.common.listing import FIRST_BYTES, IMG_EXTENSIONS, is_hidden, why_left_out

CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
WNID = re.compile(r"n\d{8}")
JPEG_ENDINGS = (".jpg", ".jpeg", ".jfif", ".jpe")
NAME_THE_CLASSES = (
    "name by --classes a file that has the classes' names (ImageNet: the wnids), one a line, in the order of the "
    "labels; numbers do where only the speed matters: seq -w 0 999 > classes.txt"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """An image, unless left_out or refused says why not. path: in the source. class_name, name: of the folder and file
    in TO."""

    path: str
    class_name: str = ""
    name: str = ""
    content: bytes | memoryview = b""
    left_out: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Shard:
    """What one thread reads. time_ns: of its file's last change; 0 for folders."""

    name: str
    split: str
    num_bytes: int
    time_ns: int
    read: Callable[[], Iterator[Entry]]


@dataclass
class Count:
    """left_out: by the reason."""

    num_images: int = 0
    num_bytes: int = 0
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, other: "Count") -> None:
        self.num_images += other.num_images
        self.num_bytes += other.num_bytes
        self.left_out.update(other.left_out)

    def text(self) -> str:
        """Such as "15 entries = 12 images + 3 left out (2 hidden, 1 text)"."""
        num_left_out = self.left_out.total()
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(self.left_out.items()) if number)
        text = f"{self.num_images + num_left_out:,} entries = {self.num_images:,} images + {num_left_out:,} left out"
        return f"{text} ({reasons})" if reasons else text


@dataclass(frozen=True)
class Source:
    """left_out: what lies beside the shards, by the reason."""

    kind: str
    shards: list[Shard]
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def refuse(entries: Iterable[Entry], where: str) -> None:
    refused = [f"{entry.path!r} {entry.refused}" for entry in entries]
    if refused:
        rest = f"; and {len(refused) - 3:,} more" if len(refused) > 3 else ""
        raise UserError(f"{where}: {'; '.join(refused[:3])}{rest}. Mend what is named, or move it out of the source")


def without_image(path: str) -> str:
    """Why it can be no image by its name; '' where it has to be read."""
    *folders, name = path.split("/")
    return "hidden" if any(map(is_hidden, folders)) else why_left_out(name)


def image_entry(path: str, class_name: str, content: bytes | memoryview, shard_name: str) -> Entry:
    name = file_name(path, shard_name)
    if not bytes(content[:8]).startswith(tuple(FIRST_BYTES.values())):
        return Entry(path, refused="is no image: its first bytes are of neither a JPEG nor a PNG")
    return Entry(path, checked_class(class_name, shard_name), image_name(name, content), content)


def file_name(path: str, shard_name: str) -> str:
    """The last part. Raises UserError for a path that leads out of the folder."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise UserError(f"{shard_name}: the name {path!r} leads out of the folder, and is not used")
    return parts[-1]


def image_name(name: str, content: bytes | memoryview) -> str:
    """JPEGs end in .JPEG, as ImageNet's do."""
    stem, ending = os.path.splitext(name)
    if ending.lower() in JPEG_ENDINGS:
        return f"{stem}.JPEG"
    if ending.lower() in IMG_EXTENSIONS:
        return name
    return name + (".JPEG" if bytes(content[:3]) == FIRST_BYTES["JPEG"] else ".png")


def checked_class(name: str, shard_name: str) -> str:
    """Raises UserError for a name that is none of a folder, such as "tench, Tinca tinca"."""
    if not CLASS_NAME.fullmatch(name):
        raise UserError(f"{shard_name}: the class {name[:100]!r} cannot be a folder; {NAME_THE_CLASSES}")
    return name


def class_of_label(label: object, classes: list[str], shard_name: str) -> str:
    """A number is a place in `classes`, text is the name itself. Raises UserError for a label that is none of them."""
    if isinstance(label, str) and (not classes or label in classes):
        return label
    if not classes:
        raise UserError(f"{shard_name}: its labels are numbers, and nothing names them; {NAME_THE_CLASSES}")
    if not isinstance(label, int) or not 0 <= label < len(classes):
        raise UserError(f"{shard_name}: the label {label!r} is none of the {len(classes)} classes")
    return classes[label]
