"""Which class a label or an image of val/ is: lists of classes, ILSVRC's devkit, and tables of a flat val folder."""

import io
import os
import tarfile
from pathlib import Path

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import read_regular_file
from scripts.data_import.source_images import refuse_outside
from scripts.stats.formatting import printable

LIST_NAMES = ("classes.txt", "labels.txt", "synsets.txt", "imagenet_synsets.txt", "LOC_synset_mapping.txt")
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
META, GROUND_TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"
MAX_TABLE_BYTES = 1 << 26  # of a table of labels; ImageNet's have some MB


def read_text(path: Path) -> str:
    """Raises UserError for what is not text, or too long for a table, and OSError."""
    try:
        return read_regular_file(path, MAX_TABLE_BYTES).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text") from None


def is_usable(path: Path, folder: Path, source: Path) -> bool:
    """Whether the file `path`, in `folder` or below, may say the classes of the source's images; False where it is not
    there. It is printed where it may, and where it may not.

    What lies beside the source, and not in it, may be another user's, as in /tmp: it and its folders must belong to the
    owner of the source, to this user or to root. Raises UserError where it is a link out of `folder`, and OSError.
    """
    if not path.is_relative_to(source):
        owners = {source.stat().st_uid, os.geteuid(), 0}
        names = path.relative_to(folder).parts
        for ancestor in (folder.joinpath(*names[: number + 1]) for number in range(len(names))):
            if not os.path.lexists(ancestor):
                return False
            if ancestor.lstat().st_uid not in owners:
                print(f"{printable(str(ancestor))} is not read: it lies beside {source}, and belongs to another user")
                return False
    if not path.is_file():
        return False
    refuse_outside(path, folder)
    print(f"labels: {printable(str(path))}")
    return True


def find_classes(folder: Path, source: Path, given: Path | None) -> list[str]:
    """The first word of each line of `given`, or of a file of the folder that is named as such lists are; else [].

    source: the folder itself, or a file in it. Raises UserError as is_usable does: the list's words become names of
    folders. And OSError.
    """
    places = [given] if given else [folder / name for name in LIST_NAMES]
    for path in places:
        if given or is_usable(path, folder, source):
            classes = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
            if not classes or len({*classes}) < len(classes):
                raise UserError(f"{path} must have one class a line, each once; its first word is the class's name")
            return classes
    return []


def find_devkit(folder: Path, source: Path) -> dict[str, bytes]:
    """The devkit's two files, by name, from its archive or its folder below `folder`; {} where there is no devkit.

    source: what is imported. Raises UserError for an archive that cannot be read, and as is_usable does.
    """
    archive = folder / DEVKIT_ARCHIVE
    if is_usable(archive, folder, source):
        try:
            return _read_archive(archive)
        except (tarfile.TarError, EOFError, OSError, MemoryError) as error:
            raise UserError(f"cannot read {archive}: {error}; is the download whole?") from None
    for devkit_folder in (
        folder,
        folder / "data",
        *sorted(folder.glob("*devkit*/data")),
        *sorted(folder.glob("*devkit*")),
    ):
        if all(is_usable(devkit_folder / name, folder, source) for name in (META, GROUND_TRUTH)):
            return {name: read_regular_file(devkit_folder / name, MAX_TABLE_BYTES) for name in (META, GROUND_TRUTH)}
    return {}


def refuse_backward(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
    """Raises UserError where the size of a member leads back to a header that was read. tarfile would read the same
    headers for ever (CVE-2025-8194). name: of the archive, for the message."""
    if member.size < 0 or archive.offset <= member.offset:
        raise UserError(f"{name} cannot be read: {member.name!r} has {member.size} bytes")


def _read_archive(archive: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with tarfile.open(archive, "r:gz") as opened:
        for member in opened:
            refuse_backward(opened, member, str(archive))
            name = member.name.rpartition("/")[2]
            if name in (META, GROUND_TRUTH) and member.isreg() and member.size <= MAX_TABLE_BYTES:
                content = opened.extractfile(member)
                found[name] = content.read() if content else b""
    if len(found) < 2:
        raise UserError(f"{archive} lacks {META} or {GROUND_TRUTH}")
    return found


def devkit_classes(devkit: dict[str, bytes]) -> list[str]:
    """The wnid of each image of val, in the order of the images' names.

    The ground truth has the numbers that meta.mat gives its synsets; torchvision.datasets.imagenet reads both the same
    way. Raises UserError where they do not fit each other.
    """
    import scipy.io

    try:
        synsets = scipy.io.loadmat(io.BytesIO(devkit[META]), squeeze_me=True)["synsets"]
        rows = [synset.item() if hasattr(synset, "item") else synset for synset in synsets]
        wnid_of = {int(row[0]): str(row[1]) for row in rows}
        return [wnid_of[int(line)] for line in devkit[GROUND_TRUTH].split()]
    except Exception as error:  # scipy's are of many types; their text may quote the files
        raise UserError(f"{META} and {GROUND_TRUTH} of the devkit cannot be read ({type(error).__name__})") from None


def classes_by_place(names: list[str], classes: list[str], shard_name: str) -> dict[str, str]:
    """The class of each image of val, by its name. Raises UserError where there are not as many images as classes."""
    if len(names) != len(classes):
        raise UserError(f"{shard_name} has {len(names)} images, and the devkit has labels of {len(classes)}")
    return dict(zip(sorted(names), classes, strict=True))


def read_annotations(path: Path) -> dict[str, str]:
    """The class of each image of val/, by its name, from val_annotations.txt or Kaggle's LOC_val_solution.csv.

    A line is `val_0.JPEG<tab>n03444034<tab>...`, or `ILSVRC2012_val_00048981,n03995372 85 1 499 272`. Raises UserError.
    """
    found = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.replace(",", "\t").split("\t") if path.suffix == ".csv" else line.split("\t")
        if line.strip() and words[0] != "ImageId":
            if len(words) < 2 or not words[1].strip():
                raise UserError(f"{path}, line {number}: it must have an image, a tab and its class")
            found[os.path.splitext(words[0].strip())[0]] = words[1].split()[0]
    return found
