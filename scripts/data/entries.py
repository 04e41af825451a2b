"""What every source is read as: shards that yield entries. An entry is an image with its class, or says why it is none.

counted() is the one place that counts them, and refuses what nobody knows how to read.
"""

import collections
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from benchmarks.common.errors import UserError
from benchmarks.common.listing import FIRST_BYTES, IMG_EXTENSIONS, is_hidden, why_left_out

NUMBERS_DO = "; numbers do where only the speed matters: seq -w 0 999 > classes.txt"
CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
WNID = re.compile(r"n\d{8}")
JPEG_ENDINGS = (".jpg", ".jpeg", ".jfif", ".jpe")
UNFINISHED = (".incomplete", ".part", ".partial", ".crdownload", ".download", ".tmp", ".aria2")
COMPRESSED = (".gz", ".tgz", ".zip", ".bz2", ".xz", ".zst")
LAST_BYTES = (b"\xff\xd9", b"\x60\x82")  # of a JPEG and of a PNG
ZEROS = 16  # bytes at the end of an image that make it suspect


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a source: an image, unless left_out or refused says why it is none.

    path: in the source, for messages. class_name, name: the folder and the file that it becomes.
    """

    path: str
    class_name: str = ""
    name: str = ""
    content: bytes | memoryview = b""
    left_out: str = ""
    refused: str = ""


@dataclass(frozen=True)
class Shard:
    """A part of a source that one thread reads from its beginning to its end.

    name: for messages and for the journal. split: "train" or "val". num_bytes: what it has in the source. time_ns: its
    file's modification time; 0 for folders. read: yields its entries, and raises UserError and OSError.
    """

    name: str
    split: str
    num_bytes: int
    time_ns: int
    read: Callable[[], Iterator[Entry]]


@dataclass
class Count:
    """Of the entries of a shard or a split. left_out: how many by the reason. rows: what a target notes of images."""

    num_images: int = 0
    num_bytes: int = 0
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rows: list[list] = dataclasses.field(default_factory=list)

    def add(self, other: "Count") -> None:
        self.num_images += other.num_images
        self.num_bytes += other.num_bytes
        self.left_out.update(other.left_out)
        self.rows += other.rows


@dataclass(frozen=True)
class Source:
    """kind: in words, such as "WebDataset". left_out: what lies beside the shards, by the reason."""

    kind: str
    shards: list[Shard]
    left_out: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


def counted(shard: Shard, count: Count) -> Iterator[Entry]:
    """The images of a shard, with all its entries counted. Raises UserError for entries that nobody reads, and for a
    shard without an image."""
    refused = []
    for entry in shard.read():
        if entry.refused:
            refused.append(entry)
        elif entry.left_out:
            count.left_out[entry.left_out] += 1
        else:
            count.num_images += 1
            count.num_bytes += len(entry.content)
            yield entry
    refuse(refused, shard.name)
    if not count.num_images:
        raise UserError(f"{shard.name} has no image; is the download whole?")


def refuse(entries: Iterable[Entry], where: str) -> None:
    """Raises UserError with the first three, if there are any."""
    refused = [f"{entry.path!r} {entry.refused}" for entry in entries]
    if refused:
        rest = f"; and {len(refused) - 3:,} more" if len(refused) > 3 else ""
        raise UserError(f"{where}: {'; '.join(refused[:3])}{rest}. Mend what is named, or move it out of the source")


def entries_words(num_images: int, left_out: collections.Counter[str]) -> str:
    """Such as "15 entries = 12 images + 3 left out (2 hidden, 1 text)"."""
    reasons = ", ".join(f"{number:,} {reason}" for reason, number in sorted(left_out.items()) if number)
    num_left_out = left_out.total()
    return f"{num_images + num_left_out:,} entries = {num_images:,} images + {num_left_out:,} left out" + (
        f" ({reasons})" if reasons else ""
    )


def entry_without_image(path: str) -> Entry | None:
    """The entry of a file that can be no image, by its name; None for one that has to be read."""
    name = path.rpartition("/")[2]
    hidden = any(is_hidden(part) for part in path.split("/"))
    if reason := "hidden" if hidden else why_left_out(name):
        return Entry(path, left_out=reason)
    if name.lower().endswith(UNFINISHED):
        return Entry(path, refused="is a download that did not end")
    if name.lower().endswith(COMPRESSED):
        return Entry(path, refused="is compressed: unpack it (gunzip or unzip), and remove it")
    return None


def image_entry(path: str, class_name: str, content: bytes | memoryview, shard_name: str) -> Entry:
    """The entry of a file that should be an image. path: in its shard; its last part is the image's name.

    Raises UserError for a path that leads out of the folder, and for a name that cannot be a class's folder.
    """
    name = file_name(path, shard_name)
    if wrong := what_is_wrong(content):
        return Entry(path, refused=wrong)
    return Entry(path, checked_class(class_name, shard_name), image_name(name, content), content)


def what_is_wrong(content: bytes | memoryview) -> str:
    """'' for a JPEG or a PNG, which is all that is decoded. A download may end in zeros: its space was allocated."""
    if not bytes(content[:8]).startswith(tuple(FIRST_BYTES.values())):
        return "is no image: its first bytes are of neither a JPEG nor a PNG"
    if not any(content[-ZEROS:]) and not bytes(content).rstrip(b"\0").endswith(LAST_BYTES):
        return "ends in zeros; is the download whole?"
    return ""


def file_name(path: str, shard_name: str) -> str:
    """The last component of a path in a shard. Raises UserError for a path that is absolute or has .. in it."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts:
        raise UserError(f"{shard_name}: the name {path!r} leads out of the folder, and is not used")
    return parts[-1]


def image_name(name: str, content: bytes | memoryview) -> str:
    """The name under which an image is stored: JPEGs end in .JPEG, as ImageNet's do."""
    stem, ending = os.path.splitext(name)
    if ending.lower() in JPEG_ENDINGS:
        return f"{stem}.JPEG"
    if ending.lower() in IMG_EXTENSIONS:
        return name
    return name + (".JPEG" if bytes(content[:3]) == FIRST_BYTES["JPEG"] else ".png")


def checked_class(name: str, shard_name: str) -> str:
    """A class's name as its folder's. Raises UserError for words such as "tench, Tinca tinca": wnids are needed."""
    if not CLASS_NAME.fullmatch(name):
        raise UserError(
            f"{shard_name}: the class {name[:100]!r} cannot be a folder; name by --classes a file that has the "
            f"classes' names (ImageNet: the wnids), one a line, in the order of the labels{NUMBERS_DO}"
        )
    return name


def class_of_label(label: object, classes: list[str], shard_name: str) -> str:
    """The name of a label: a number is a place in `classes`, and text is the name itself.

    Raises UserError for a number that has no name, and for a name that is not in the list, where there is one.
    """
    if isinstance(label, str) and (not classes or label in classes):
        return label
    if not classes:
        raise UserError(
            f"{shard_name}: its labels are numbers, and nothing names them; name by --classes a file that has the "
            f"classes' names (ImageNet: the wnids), one a line, in the order of the labels{NUMBERS_DO}"
        )
    if not isinstance(label, int) or not 0 <= label < len(classes):
        raise UserError(f"{shard_name}: the label {label!r} is none of the {len(classes)} classes")
    return classes[label]
