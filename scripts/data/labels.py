"""Which class a label or an image of val/ is: lists of classes, ILSVRC's devkit, and the tables of a flat val folder.

A label has one source. Where two of them differ, or one says two things, the import is refused.
"""

import collections
import io
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import format_names

LIST_NAMES = ("classes.txt", "labels.txt", "synsets.txt", "imagenet_synsets.txt", "LOC_synset_mapping.txt")
TABLES = ("val_annotations.txt", "LOC_val_solution.csv")
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
META, GROUND_TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


def read_text(path: Path) -> str:
    """Of a list or a table, whose name is printed. Raises UserError for what is not text, and OSError."""
    print(f"labels: {path}")
    try:
        return path.read_text(encoding="utf-8-sig")  # Windows' editors put a mark before the text
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8; save it as such") from None


def find_classes(folder: Path, given: Path | None) -> list[str]:
    """The first word of each line of `given`, or of a file of the folder that is named as such lists are; else [].

    Raises UserError as read_text does, where a class is there twice and where two lists differ, and OSError.
    """
    found: dict[Path, list[str]] = {}
    for path in [given] if given else [folder / name for name in LIST_NAMES if (folder / name).is_file()]:
        found[path] = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
        refuse_equal_names(found[path], str(path))
    if len({tuple(classes) for classes in found.values()}) > 1:
        raise UserError(f"{' and '.join(map(str, found))} have other classes; name by --classes the right one")
    return next(iter(found.values()), [])


def refuse_equal_names(classes: list[str], where: str) -> None:
    """Raises UserError where two classes have one name, or there is none: their images would be one class."""
    twice = [name for name, number in collections.Counter(classes).items() if number > 1]
    if twice or not classes:
        raise UserError(
            f"{where} must have each class once, and has {f'{format_names(twice)} twice' if twice else 'none'}; give "
            "by --classes a list with a class in each line, whose first word is the name"
        )


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
    """The wnid of each image of val, in the order of their numbers, which begin at 1.

    The ground truth has the numbers that meta.mat gives its synsets. torchvision's reader wants the whole archive and
    its checksum, and writes beside it. Raises UserError where the files do not fit each other.
    """
    import scipy.io

    try:
        synsets = scipy.io.loadmat(io.BytesIO(devkit[META]), squeeze_me=True)["synsets"]
        rows = [synset.item() if hasattr(synset, "item") else synset for synset in synsets]
        wnid_of = {int(row[0]): str(row[1]) for row in rows}
        return [wnid_of[int(line)] for line in devkit[GROUND_TRUTH].split()]
    except Exception as error:  # scipy's are of many types
        raise UserError(f"{META} and {GROUND_TRUTH} of the devkit cannot be read ({type(error).__name__})") from None


def classes_by_number(names: Iterable[str], classes: list[str], where: str) -> dict[str, str]:
    """The class of each image of val by the number at the end of its name. classes: of the numbers from 1 on.

    Raises UserError where a number is missing, or an image has none of them.
    """
    name_of: dict[int, str] = {}
    wrong = []
    for name in names:
        digits = re.search(r"\d+$", os.path.splitext(name)[0])
        number = int(digits[0]) if digits else 0
        if number in name_of or not 0 < number <= len(classes):
            wrong.append(name)
        else:
            name_of[number] = name
    missing = [str(number) for number in range(1, len(classes) + 1) if number not in name_of]
    if wrong or missing:
        what = [f"{format_names(wrong)} cannot be placed by number"] if wrong else []
        what += [f"number {', '.join(missing[:3])} of {len(missing):,} missing ones is not there"] if missing else []
        raise UserError(f"{where}: the devkit has labels of the images 1 to {len(classes):,}, and {'; '.join(what)}")
    return {name: classes[number - 1] for number, name in name_of.items()}


def read_table(path: Path) -> dict[str, str]:
    """The class of each image of val/, by its name, from val_annotations.txt or Kaggle's LOC_val_solution.csv.

    A line is `val_0.JPEG<tab>n03444034<tab>...`, or `ILSVRC2012_val_00048981,n03995372 85 1 499 272`. Raises UserError.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        words = line.replace(",", "\t").split("\t") if path.suffix == ".csv" else line.split("\t")
        name = words[0].strip()
        if not line.strip() or name == "ImageId":
            continue
        if len(words) < 2 or not words[1].strip():
            raise UserError(f"{path}, line {number}: it must have an image, a tab and its class")
        boxes = {*words[1].split()[::5]} if path.suffix == ".csv" else {*words[1].split()[:1]}
        if name in found or len(boxes) > 1:
            raise UserError(f"{path}, line {number}: {name!r} is there twice, or has two classes; remove the wrong one")
        found[name] = boxes.pop()
    return found


def classes_by_table(names: list[str], table: dict[str, str], path: Path) -> dict[str, str]:
    """The class of each image by its whole name. A table's name without an ending is that of the one image with it.

    Raises UserError where an image is not in the table, or one of the table is not there.
    """
    stems = collections.Counter(os.path.splitext(name)[0] for name in names)
    found, rows = {}, dict(table)
    for name in names:
        stem = os.path.splitext(name)[0]
        key = name if name in table or stems[stem] > 1 else stem
        if key in rows:
            found[name] = rows.pop(key)
    if missing := [name for name in names if name not in found]:
        raise UserError(
            f"{path} does not have the class of {format_names(missing)}; add a line for each, or move these images away"
        )
    if rows:
        raise UserError(
            f"{path} has {len(table):,} images; not there ({len(rows):,}): {format_names(rows)}; "
            "is the folder whole? Else remove their lines"
        )
    return found


def find_val_classes(folder: Path, flat: Path, names: list[str]) -> dict[str, str]:
    """The class of each image of val/ by its name, from the tables and the devkit beside it; {} where there are none.

    flat: the folder of the images, in `folder`. Raises UserError where two of them differ, and as the readers do.
    """
    places = dict.fromkeys((flat / "images", flat, folder))
    tables = [place / name for place in places for name in TABLES if (place / name).is_file()]
    found = [(str(table), classes_by_table(names, read_table(table), table)) for table in tables]
    if devkit := next(filter(None, map(find_devkit, (folder, folder.parent, flat))), None):
        found.append(("the devkit", classes_by_number(names, devkit_classes(devkit), "val/")))
    for where, other in found[1:]:
        if different := [name for name in names if other[name] != found[0][1][name]]:
            raise UserError(f"{found[0][0]} and {where} have other classes of {format_names(different)}; remove one")
    return found[0][1] if found else {}
