"""Folders whose val/ is flat: all its images in one folder, and a table or the devkit that says which class each is.

train/ has class folders there already; Tiny ImageNet has one more folder, images/, in each.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import IMG_EXTENSIONS
from scripts.data.entries import SourceImage, SourceShard, class_name, image_name
from scripts.data.labels import classes_by_place, devkit_classes, find_devkit, parse_annotations, read_list

TABLES = ("val_annotations.txt", "LOC_val_solution.csv")
NUM_TOGETHER = 1000  # images of val/ that are a shard


def images_in(folder: Path) -> list[Path]:
    """The images directly in a folder, sorted by name. Raises OSError."""
    return sorted(path for path in folder.iterdir() if path.name.lower().endswith(IMG_EXTENSIONS))


def find_flat_val(folder: Path) -> Path | None:
    """The folder with the images of val/: val/images, val or `folder` itself; None where none is."""
    for images_folder in (folder / "val" / "images", folder / "val", folder):
        if images_folder.is_dir() and images_in(images_folder):
            return images_folder
    return None


def val_classes(folder: Path, flat: Path, images: list[Path]) -> dict[str, str]:
    """The class of each image, by its name. Raises UserError where nothing says it, or not of each image."""
    names = [path.name for path in images]
    for table in (labels_folder / name for labels_folder in (flat, flat.parent, folder) for name in TABLES):
        if table.is_file():
            by_stem = parse_annotations(read_list(table), table)
            class_of = {name: by_stem.get(os.path.splitext(name)[0], "") for name in names}
            if missing := [name for name, named in class_of.items() if not named]:
                raise UserError(f"{table} does not have the class of {missing[0]!r}, one of {len(missing)}")
            return class_of
    for labels_folder in (folder, folder.parent, flat):
        if devkit := find_devkit(labels_folder):
            return classes_by_place(names, devkit_classes(devkit), str(flat))
    raise UserError(
        f"nothing says which classes the {len(images)} images in {flat} are; put val_annotations.txt, Kaggle's "
        "LOC_val_solution.csv or ILSVRC2012_devkit_t12.tar.gz beside them"
    )


def folder_shards(folder: Path, flat: Path) -> list[SourceShard]:
    """A shard for each class of train/, and some for the flat val/. Raises UserError, and OSError."""
    images = images_in(flat)
    class_of = val_classes(folder, flat, images)
    named = [(class_name(class_of[path.name], flat.name), path) for path in images]
    shards = [
        make_shard(f"val {start}", "val", named[start : start + NUM_TOGETHER])
        for start in range(0, len(named), NUM_TOGETHER)
    ]
    train = folder / "train"
    for of_class in sorted(train.iterdir()) if train.is_dir() else []:
        if of_class.is_dir():
            name = class_name(of_class.name, "train")
            inner = of_class / "images" if (of_class / "images").is_dir() else of_class
            shards.append(make_shard(f"train/{name}", "train", [(name, path) for path in images_in(inner)]))
    return shards


def make_shard(shard_name: str, split: str, named: list[tuple[str, Path]]) -> SourceShard:
    def read() -> Iterator[SourceImage]:
        for name, path in named:
            yield SourceImage(name, image_name(path.name, shard_name), path.read_bytes())

    return SourceShard(shard_name, split, sum(path.stat().st_size for _, path in named), 0, read)
