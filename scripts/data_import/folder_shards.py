"""Folders whose val/ is flat: all its images in one folder, and a table or the devkit that says which class each is.

train/ has class folders there already; Tiny ImageNet has one more folder, images/, in each. A link must lead to
somewhere in the source: else a download could have the user's own files copied.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.data.listing import FIRST_BYTES, IMG_EXTENSIONS
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import MAX_IMAGE_BYTES, read_open_file
from scripts.data_import.class_lists import (
    classes_by_place,
    devkit_classes,
    find_devkit,
    is_usable,
    read_annotations,
)
from scripts.data_import.source_images import (
    SourceImage,
    SourceShard,
    class_name,
    file_name,
    image_name,
    open_inside,
    readable_places,
    refuse_outside,
)

TABLES = ("val_annotations.txt", "LOC_val_solution.csv")
NUM_TOGETHER = 1000  # images of val/ that are a shard


def images_in(folder: Path, source: Path) -> list[Path]:
    """The images directly in a folder, sorted by name. Raises UserError for a link out of the source, and OSError."""
    refuse_outside(folder, source)
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(IMG_EXTENSIONS):
                names.append(entry.name)
                if entry.is_symlink():
                    refuse_outside(folder / entry.name, source)
    return [folder / name for name in sorted(names)]


def find_flat_val(folder: Path) -> Path | None:
    """The folder with the images of val/: folder/val/images, folder/val or the folder itself; None where none is."""
    for images_folder in (folder / "val" / "images", folder / "val", folder):
        if images_folder.is_dir() and images_in(images_folder, folder):
            return images_folder
    return None


def val_classes(folder: Path, flat: Path, images: list[Path]) -> dict[str, str]:
    """The class of each image, by its name. Raises UserError where nothing says it, or not of each image."""
    names = [path.name for path in images]
    for labels_folder in (flat, flat.parent, folder):
        for table in TABLES:
            if is_usable(
                labels_folder / table, folder if labels_folder.is_relative_to(folder) else labels_folder, folder
            ):
                by_stem = read_annotations(labels_folder / table)
                class_of = {name: by_stem.get(os.path.splitext(name)[0], "") for name in names}
                if missing := [name for name, named in class_of.items() if not named]:
                    raise UserError(
                        f"{labels_folder / table} does not have the class of {missing[0]!r}, one of {len(missing)}"
                    )
                return class_of
    for labels_folder in (folder, folder.parent, flat):
        if devkit := find_devkit(labels_folder, folder):
            return classes_by_place(names, devkit_classes(devkit), str(flat))
    raise UserError(
        f"nothing says which classes the {len(images)} images in {flat} are; put val_annotations.txt, Kaggle's "
        "LOC_val_solution.csv or ILSVRC2012_devkit_t12.tar.gz beside them"
    )


def folder_shards(folder: Path, flat: Path) -> list[SourceShard]:
    """A shard for each class of train/, and some for the flat val/. Raises UserError, and OSError."""
    places = readable_places(folder)
    images = images_in(flat, folder)
    class_of = val_classes(folder, flat, images)
    named = [(class_name(class_of[path.name], flat.name), path) for path in images]
    shards = [
        make_shard(f"val {start}", "val", named[start : start + NUM_TOGETHER], places)
        for start in range(0, len(named), NUM_TOGETHER)
    ]
    train = folder / "train"
    refuse_outside(train, folder)
    for of_class in sorted(train.iterdir()) if train.is_dir() else []:
        if of_class.is_dir():
            name = class_name(of_class.name, "train")
            inner = of_class / "images" if (of_class / "images").is_dir() else of_class
            of_train = [(name, path) for path in images_in(inner, folder)]
            shards.append(make_shard(f"train/{name}", "train", of_train, places))
    return shards


def make_shard(shard_name: str, split: str, named: list[tuple[str, Path]], places: tuple[Path, ...]) -> SourceShard:
    def read() -> Iterator[SourceImage]:
        for name, path in named:
            content = read_open_file(open_inside(path, places), MAX_IMAGE_BYTES, str(path))
            if not content.startswith((*FIRST_BYTES.values(),)):
                raise UserError(f"{str(path)!r} begins as neither a JPEG nor a PNG, and is not copied; remove it")
            yield SourceImage(name, image_name(file_name(path.name, shard_name), shard_name), content)

    return SourceShard(shard_name, split, sum(path.stat().st_size for _, path in named), 0, read)
