"""What every source is read as: shards, which yield images, and the rules for the names that a source gives.

A name from an archive is data of somebody else: it becomes a file's or a class folder's name only if it is one plain
path component. Nothing is repaired, since a repaired name is another name.
"""

import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.data.listing import IMG_EXTENSIONS
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import MAX_IMAGE_BYTES, open_regular_file, path_of_open_file
from scripts.stats.formatting import printable

SPLIT_OF_WORD = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
"""Words in a shard's path, and the split that each means."""
NUMBERS_DO = "; numbers do where only the speed matters: seq -w 0 999 > classes.txt"
CLASS_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
MAX_NAME_BYTES = 255  # of a file's name, on Linux's file systems
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
    file's modification time; 0 for folders. read: yields its images. Raises UserError for what cannot be imported, and
    OSError for what cannot be read.
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
    """The last component of a path in a shard.

    Raises UserError for a path that is absolute or has .., and for a name that is hidden, too long or not printable.
    """
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\\" in path:
        raise UserError(f"{shard_name}: the name {path!r} leads out of the folder, and is not used")
    name = parts[-1]
    if not name or name.startswith(".") or not name.isprintable() or len(os.fsencode(name)) > MAX_NAME_BYTES:
        raise UserError(f"{shard_name}: {path[:300]!r} is no name for an image")
    return name


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
    if not CLASS_NAME.fullmatch(name) or len(name) > MAX_NAME_BYTES:
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


def check_size(num_bytes: int, name: str, shard_name: str) -> None:
    """Raises UserError for an image that no loader would read."""
    if num_bytes > MAX_IMAGE_BYTES:
        raise UserError(f"{shard_name}: {name!r} claims {num_bytes} bytes, more than an image has ({MAX_IMAGE_BYTES})")


def readable_places(folder_or_file: Path) -> tuple[Path, ...]:
    """The real paths of what may be read there: the folder or the file itself, and what is below.

    In the hub's cache links of snapshots/<commit>/ lead to blobs/ beside snapshots/, which may be read where the folder
    is such a snapshot. blobs/ itself must be no link. Raises OSError.
    """
    real = folder_or_file.resolve()
    return (real, *(above.parent / "blobs" for above in (real, *real.parents) if above.name == "snapshots"))


@dataclass(frozen=True)
class Download:
    """What the user has named, and where its files may lie. Whoever can write to it may put links there later.

    path: a folder or a file. places: readable_places of it. places_beside: those of the folder that it is in, where
    lists and tables of classes may lie, too. owners: the users whose lists count there.
    """

    path: Path
    places: tuple[Path, ...]
    places_beside: tuple[Path, ...]
    owners: frozenset[int]

    @classmethod
    def at(cls, path: Path) -> "Download":
        """As it is now, before anything else looks at it. Raises OSError where it is not there."""
        owners = frozenset({path.stat().st_uid, os.geteuid(), 0})
        return cls(path, readable_places(path), readable_places(path.parent), owners)

    def refuse_outside(self, path: Path) -> None:
        """Raises UserError where a link leads from `path`, in the download or beside it, out of these places."""
        self._refuse_other_places(path.resolve(), path)

    def open(self, path: Path) -> io.FileIO:
        """A file in the download or beside it, for reading; looked at is what was opened: there may be a link under its
        name by now. Raises UserError as refuse_outside does, and OSError as open_regular_file does."""
        file = open_regular_file(path)
        try:
            self._refuse_other_places(Path(path_of_open_file(file)), path)
        except BaseException:
            file.close()
            raise
        return file

    def open_list(self, path: Path) -> io.FileIO | None:
        """A list of classes, a table or a file of a devkit; None where it is not there, or is another user's.

        What lies beside the download, and not in it, may be another user's, as in /tmp: it, its folders and what a link
        leads to must belong to one of the owners. The name is printed where it is read, and where it is another user's.
        Raises UserError and OSError as `open` does.
        """
        foreign = self._of_another_user(path) if self._is_beside(path) else None
        if foreign is None:
            if not path.is_file():
                return None
            file = self.open(path)
            if not self._is_beside(path) or os.fstat(file.fileno()).st_uid in self.owners:
                print(f"labels: {printable(str(path))}")
                return file
            file.close()
            foreign = path
        print(f"{printable(str(foreign))} is not read: it lies beside {self.path}, and belongs to another user")
        return None

    def _is_beside(self, path: Path) -> bool:
        return not path.is_relative_to(self.path)

    def _of_another_user(self, path: Path) -> Path | None:
        """The first of the folders and links from beside the download to `path` that belongs to none of the owners."""
        names = path.relative_to(self.path.parent).parts
        for above in (self.path.parent.joinpath(*names[: number + 1]) for number in range(len(names))):
            if not os.path.lexists(above):
                return None
            if above.lstat().st_uid not in self.owners:
                return above
        return None

    def _refuse_other_places(self, real: Path, path: Path) -> None:
        places = self.places_beside if self._is_beside(path) else self.places
        if not any(real.is_relative_to(place) for place in places):
            raise UserError(
                f"{str(path)!r} leads out of {str(places[0])!r}, and is not copied; put what it leads to there"
            )


@dataclass(frozen=True)
class Archive:
    """A tar or a Parquet file of a download. name: its path below the download, for messages."""

    download: Download
    path: Path
    name: str

    def open(self) -> io.FileIO:
        """Raises as Download.open does."""
        return self.download.open(self.path)
