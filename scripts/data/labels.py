"""Which class a label or an image of val/ is: lists of classes, ILSVRC's devkit, the tables of a flat val folder."""

import collections
import io
import os
import re
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import format_names

LIST_NAMES = ("classes.txt", "labels.txt", "synsets.txt", "imagenet_synsets.txt", "LOC_synset_mapping.txt")
ANNOTATIONS, SOLUTION = "val_annotations.txt", "LOC_val_solution.csv"
DEVKIT_ARCHIVE = "ILSVRC2012_devkit_t12.tar.gz"
META, GROUND_TRUTH = "meta.mat", "ILSVRC2012_validation_ground_truth.txt"


def read_lines(path: Path) -> list[str]:
    print(f"labels: {path}")
    text = path.read_text(encoding="utf-8-sig", errors="replace")  # Windows' editors put a mark before the text
    return [line for line in text.splitlines() if line.strip()]


def find_classes(folder: Path, given: Path | None) -> list[str]:
    """The first word of each line of `given`, else of the first list in the folder; [] without. Raises UserError where
    two classes have one name, as ImageNet's two kinds of crane."""
    for path in [given] if given else [folder / name for name in LIST_NAMES if (folder / name).is_file()]:
        classes = [line.split()[0] for line in read_lines(path)]
        if twice := [name for name, number in collections.Counter(classes).items() if number > 1]:
            raise UserError(
                f"{path} must have each class once, and has {format_names(twice)} twice; "
                "give by --classes a list whose lines begin with their names"
            )
        return classes
    return []


def devkit_classes(folder: Path) -> list[str]:
    """The wnid of each image of val, by its number from 1 on; [] without a devkit."""
    archive = folder / DEVKIT_ARCHIVE
    if not archive.is_file():
        return []
    import scipy.io

    print(f"labels: {archive}")
    try:
        with tarfile.open(archive, "r:gz") as opened:
            contents = {
                os.path.basename(member.name): file.read() for member in opened if (file := opened.extractfile(member))
            }
        synsets = scipy.io.loadmat(io.BytesIO(contents[META]), squeeze_me=True)["synsets"]
        rows = [synset.item() if hasattr(synset, "item") else synset for synset in synsets]
        wnid_of = {int(row[0]): str(row[1]) for row in rows}
        return [wnid_of[int(line)] for line in contents[GROUND_TRUTH].split()]
    except Exception as error:  # scipy's are of many types
        raise UserError(
            f"cannot read {META} and {GROUND_TRUTH} of {archive} ({error!r}); is the download whole?"
        ) from None


def find_val_classes(folder: Path, paths: list[str]) -> dict[str, str]:
    """By path, from a table or the devkit."""
    for table in (folder / "val" / ANNOTATIONS, folder / ANNOTATIONS, folder / SOLUTION, folder / "val" / SOLUTION):
        if table.is_file():
            return match(paths, stem, read_table(table), table)
    if classes := devkit_classes(folder):
        return classes_by_number(paths, classes, folder / "val")
    raise UserError(
        f"nothing says which classes the {len(paths):,} images {format_names(paths)} are; put {ANNOTATIONS}, "
        f"Kaggle's {SOLUTION} or {DEVKIT_ARCHIVE} beside val/"
    )


def stem(path: str) -> str:
    return os.path.splitext(os.path.basename(path))[0]


def number_in(path: str) -> str:
    """At the end of the stem; without one, the stem."""
    digits = re.search(r"\d+$", stem(path))
    return str(int(digits[0])) if digits else stem(path)


def classes_by_number(paths: Sequence[str], classes: list[str], where: object) -> dict[str, str]:
    """classes: of the numbers from 1 on."""
    return match(paths, number_in, [(str(number), name) for number, name in enumerate(classes, 1)], where)


def read_table(path: Path) -> list[tuple[str, str]]:
    """Stem and class of each image. A line is `val_0.JPEG<tab>n03444034<tab>...`, or
    `ILSVRC2012_val_00048981,n03995372 85 1 499 272`."""
    words = [re.split(r"[,\t]", line) for line in read_lines(path)]
    if short := [row[0] for row in words if not "".join(row[1:2]).strip()]:
        raise UserError(f"{path}: no class of {format_names(short)}; a line must have an image, a tab and its class")
    return [(stem(row[0]), row[1].split()[0]) for row in words if row[0] != "ImageId"]


def match(
    paths: Sequence[str], key: Callable[[str], str], table: Sequence[tuple[str, str]], where: object
) -> dict[str, str]:
    """The class by path. Raises UserError unless each image has one line, and each line an image."""
    class_of, keys = dict(table), [key(path) for path in paths]
    of_paths, of_table = collections.Counter(keys), collections.Counter(name for name, _ in table)
    if wrong := [name for name in {*keys, *class_of} if not of_paths[name] == of_table[name] == 1]:
        raise UserError(
            f"{where}: {len(paths):,} images and {len(table):,} labels do not match: {format_names(wrong)}; "
            "is the folder whole, and nothing there twice?"
        )
    return {path: class_of[name] for path, name in zip(paths, keys, strict=True)}
