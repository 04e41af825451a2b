"""Which class a label or an image of val/ is: lists of classes, ILSVRC's devkit, and tables of a flat val folder."""

import io
import os
import tarfile
from pathlib import Path

from benchmarks.common.errors import UserError

LIST_NAMES = ("classes.txt", "labels.txt", "synsets.txt", "imagenet_synsets.txt", "LOC_synset_mapping.txt")
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
META, GROUND_TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


def read_list(path: Path) -> str:
    """The text of a list or a table, whose name is printed. Raises UserError for what is not text, and OSError."""
    print(f"labels: {path}")
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text") from None


def find_classes(folder: Path, given: Path | None) -> list[str]:
    """The first word of each line of `given`, or of a file of the folder that is named as such lists are; else [].

    Raises UserError as read_list does, and OSError.
    """
    for path in [given] if given else [folder / name for name in LIST_NAMES if (folder / name).is_file()]:
        classes = [line.split()[0] for line in read_list(path).splitlines() if line.strip()]
        if not classes or len({*classes}) < len(classes):
            raise UserError(f"{path} must have one class a line, each once; its first word is the class's name")
        return classes
    return []


def find_devkit(folder: Path) -> dict[str, bytes]:
    """The devkit's two files, by name, from its archive or its folder below `folder`; {} where there is no devkit.

    Raises UserError for an archive that cannot be read, and OSError.
    """
    archive = folder / DEVKIT_ARCHIVE
    if archive.is_file():
        return _read_archive(archive)
    for inner in (folder, folder / "data", *sorted(folder.glob("*devkit*/data")), *sorted(folder.glob("*devkit*"))):
        paths = [inner / META, inner / GROUND_TRUTH]
        if all(path.is_file() for path in paths):
            print(f"labels: {inner}")
            return {path.name: path.read_bytes() for path in paths}
    return {}


def _read_archive(archive: Path) -> dict[str, bytes]:
    print(f"labels: {archive}")
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as opened:
            for member in opened:
                name = member.name.rpartition("/")[2]
                if name in (META, GROUND_TRUTH) and (content := opened.extractfile(member)):
                    found[name] = content.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"cannot read {archive}: {error}; is the download whole?") from None
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
    except Exception as error:  # scipy's are of many types
        raise UserError(f"{META} and {GROUND_TRUTH} of the devkit cannot be read ({type(error).__name__})") from None


def classes_by_place(names: list[str], classes: list[str], shard_name: str) -> dict[str, str]:
    """The class of each image of val, by its name. Raises UserError where there are not as many images as classes."""
    if len(names) != len(classes):
        raise UserError(f"{shard_name} has {len(names)} images, and the devkit has labels of {len(classes)}")
    return dict(zip(sorted(names), classes, strict=True))


def parse_annotations(text: str, path: Path) -> dict[str, str]:
    """The class of each image of val/, by its name, from val_annotations.txt or Kaggle's LOC_val_solution.csv.

    path: the table's name. A line is `val_0.JPEG<tab>n03444034<tab>...`, or `ILSVRC2012_val_00048981,n03995372 85 1 499
    272`. Raises UserError.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", "\t").split("\t") if path.suffix == ".csv" else line.split("\t")
        if line.strip() and words[0] != "ImageId":
            if len(words) < 2 or not words[1].strip():
                raise UserError(f"{path}, line {number}: it must have an image, a tab and its class")
            found[os.path.splitext(words[0].strip())[0]] = words[1].split()[0]
    return found
