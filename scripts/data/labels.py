"""Which class a label or an image of val/ is: lists of classes, ILSVRC's devkit, the tables of a flat val folder."""

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
ANNOTATIONS, SOLUTION = "val_annotations.txt", "LOC_val_solution.csv"
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
META, GROUND_TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


def read_text(path: Path) -> str:
    print(f"labels: {path}")
    return path.read_text(encoding="utf-8-sig", errors="replace")  # Windows' editors put a mark before the text


def find_classes(folder: Path, given: Path | None) -> list[str]:
    """The first word of each line of `given`, else of a list in the folder."""
    found: dict[Path, list[str]] = {}
    for path in [given] if given else [folder / name for name in LIST_NAMES if (folder / name).is_file()]:
        found[path] = [line.split()[0] for line in read_text(path).splitlines() if line.strip()]
        refuse_equal_names(found[path], str(path))
    lists = [*found.values()]
    if any(one != lists[0] for one in lists):
        raise UserError(f"{' and '.join(map(str, found))} have other classes; name by --classes the right one")
    return lists[0] if lists else []


def refuse_equal_names(classes: list[str], where: str) -> None:
    """Two classes of one name, as ImageNet's two kinds of crane, would be merged."""
    twice = [name for name, number in collections.Counter(classes).items() if number > 1]
    if twice or not classes:
        has = f"{format_names(twice)} twice" if twice else "none"
        raise UserError(
            f"{where} must have each class once, and has {has}; "
            "give by --classes a list whose lines begin with their names"
        )


def devkit_classes(folder: Path) -> list[str]:
    """The wnid of each image of val, by its number from 1 on; [] without a devkit."""
    files = _read_devkit(folder)
    if not files:
        return []
    import scipy.io

    try:
        synsets = scipy.io.loadmat(io.BytesIO(files[META]), squeeze_me=True)["synsets"]
        rows = [synset.item() if hasattr(synset, "item") else synset for synset in synsets]
        wnid_of = {int(row[0]): str(row[1]) for row in rows}
        return [wnid_of[int(line)] for line in files[GROUND_TRUTH].split()]
    except Exception as error:  # scipy's are of many types
        raise UserError(f"{META} and {GROUND_TRUTH} of the devkit cannot be read ({type(error).__name__})") from None


def _read_devkit(folder: Path) -> dict[str, bytes]:
    """Of the archive, or the folder that was in it."""
    found: dict[str, bytes] = {}
    archive = folder / DEVKIT_ARCHIVE
    try:
        if archive.is_file():
            with tarfile.open(archive, "r:gz") as opened:
                for member in opened:
                    name = member.name.rpartition("/")[2]
                    if name in (META, GROUND_TRUTH) and (content := opened.extractfile(member)):
                        found[name] = content.read()
        else:
            for path in [path for name in (META, GROUND_TRUTH) for path in folder.glob(f"*devkit*/data/{name}")]:
                found[path.name] = path.read_bytes()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"cannot read {archive}: {error}; is the download whole?") from None
    if len(found) == 1:
        raise UserError(f"the devkit in {folder} has no more than {found.popitem()[0]}; is it whole?")
    if found:
        print(f"labels: the devkit in {folder}")
    return found


def find_val_classes(folder: Path, paths: list[str]) -> dict[str, str]:
    """By path, from a table or the devkit."""
    for table in (folder / "val" / ANNOTATIONS, folder / ANNOTATIONS, folder / SOLUTION, folder / "val" / SOLUTION):
        if table.is_file():
            return _classes_by_table(paths, _read_table(table), table)
    if classes := devkit_classes(folder):
        return classes_by_number(paths, classes, f"{folder}/val")
    raise UserError(
        f"nothing says which classes the {len(paths):,} images {format_names(paths)} are; put {ANNOTATIONS}, "
        f"Kaggle's {SOLUTION} or {DEVKIT_ARCHIVE} beside val/"
    )


def classes_by_number(paths: Iterable[str], classes: list[str], where: str) -> dict[str, str]:
    """By the number at the end of a name. classes: of the numbers from 1 on."""
    path_of: dict[int, str] = {}
    wrong = []
    for path in paths:
        digits = re.search(r"\d+$", os.path.splitext(path)[0])
        number = int(digits[0]) if digits else 0
        if number in path_of or not 0 < number <= len(classes):
            wrong.append(path)
        path_of[number] = path
    missing = [number for number in range(1, len(classes) + 1) if number not in path_of]
    if wrong or missing:
        raise UserError(
            f"{where}: the devkit labels the images 1 to {len(classes):,} by the number in the name; "
            f"not there: {missing[:3]} of {len(missing):,}; cannot be placed: {format_names(wrong) or 'none'}"
        )
    return {path: classes[number - 1] for number, path in path_of.items()}


def _read_table(path: Path) -> dict[str, str]:
    """The class of each image by its name. A line is `val_0.JPEG<tab>n03444034<tab>...`, or
    `ILSVRC2012_val_00048981,n03995372 85 1 499 272`."""
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        name, *rest = re.split(r"[,\t]" if path.suffix == ".csv" else r"\t", line)
        if not line.strip() or name == "ImageId":
            continue
        if not rest or not rest[0].strip():
            raise UserError(f"{path}, line {number}: it must have an image, a tab and its class")
        if name in found:
            raise UserError(f"{path}, line {number}: {name!r} is there twice; remove the wrong line")
        found[name] = rest[0].split()[0]
    return found


def _classes_by_table(paths: list[str], table: dict[str, str], where: Path) -> dict[str, str]:
    """By name, with or without its ending."""
    found, rows = {}, dict(table)
    for path in paths:
        name = os.path.basename(path)
        key = name if name in table else os.path.splitext(name)[0]
        if key not in rows:
            raise UserError(f"{where} does not have the class of {name!r} once; mend its line, or move the image away")
        found[path] = rows.pop(key)
    if rows:
        raise UserError(
            f"{where} has {len(table):,} images; not there ({len(rows):,}): {format_names(rows)}; "
            "is the folder whole? Else remove their lines"
        )
    return found
