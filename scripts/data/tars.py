"""Images in tar files: WebDataset's shards, and ILSVRC2012's tars, of which that of train holds a tar a class.

Nothing is extracted.
"""

import itertools
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import is_left_out
from scripts.data.entries import NamedImage, checked_class, class_of_label, file_name, named_image
from scripts.data.labels import classes_by_number

MAX_END_BYTES = tarfile.RECORDSIZE + tarfile.BLOCKSIZE  # of zeros at the end of an archive


def read_members(path: Path, where: str, begin: int = 0) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Of the archive that begins at this byte: files that are neither hidden nor text. Raises UserError for a name that
    leads out of the folder, and for an archive that is damaged."""
    try:
        with open(path, "rb") as file:
            file.seek(begin)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for member in archive:
                    file_name(member.name, where)
                    if not member.isdir() and not is_left_out(member.name):
                        yield archive, member
                # a download whose space was allocated ends in zeros, which is how an archive ends
                if begin == 0 and path.stat().st_size - archive.offset > MAX_END_BYTES:
                    raise UserError(
                        f"{where} ends after {archive.offset} bytes, and zeros follow; is the download whole?"
                    )
    except (tarfile.TarError, ValueError, KeyError) as error:
        raise UserError(f"{where} cannot be read: {error}; is the download whole, and no .gz?") from None


def content_of(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """Of a link, what it leads to; nothing of a device."""
    file = archive.extractfile(member)
    return file.read() if file else b""


def read_webdataset(path: Path, where: str, classes: list[str]) -> Iterator[NamedImage]:
    """A sample: neighbours of one name, an image and a .cls. Text beside them, such as .json, is not read."""
    files = ((member.name, content_of(archive, member)) for archive, member in read_members(path, where))
    for key, of_sample in itertools.groupby(files, lambda file: os.path.splitext(file[0])[0]):
        parts = [*of_sample]
        labels = [content for name, content in parts if name.lower().endswith(".cls")]
        images = [(name, content) for name, content in parts if not name.lower().endswith(".cls")]
        if len(labels) != 1 or len(images) != 1:
            raise UserError(
                f"{where}: {key!r} is no sample: that is one image and one .cls of the same name, one after the other"
            )
        text = labels[0].decode(errors="replace").strip()
        label = int(text) if re.fullmatch("-?[0-9]+", text) else text
        (name, content), label_file = images[0], f"{where}: {key + '.cls'!r}"
        yield named_image(name, class_of_label(label, classes, label_file), content, label_file)


def list_class_tars(path: Path) -> list[tuple[str, int, int]]:
    """(class, first byte, bytes) in ILSVRC2012_img_train.tar."""
    found = []
    for _, member in read_members(path, path.name):
        stem, ending = os.path.splitext(file_name(member.name, path.name))
        if ending != ".tar":
            raise UserError(f"{path.name}: {member.name!r} is no tar of a class")
        found.append((checked_class(stem, path.name), member.offset_data, member.size))
    return found


def read_class_tar(path: Path, where: str, class_name: str, begin: int = 0) -> Iterator[NamedImage]:
    """A file, or from byte `begin` on in the tar of train."""
    for archive, member in read_members(path, where, begin):
        yield named_image(member.name, class_name, content_of(archive, member), where)


def read_flat_tar(path: Path, classes: list[str]) -> Iterator[NamedImage]:
    """ILSVRC2012_img_val.tar. classes: by the number in the name."""
    class_of = classes_by_number([member.name for _, member in read_members(path, path.name)], classes, path.name)
    for archive, member in read_members(path, path.name):
        yield named_image(member.name, class_of[member.name], content_of(archive, member), path.name)
