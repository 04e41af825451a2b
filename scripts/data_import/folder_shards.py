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
    decode_text,
    devkit_classes,
    find_devkit,
    parse_annotations,
    read_list,
)
from scripts.data_import.source_images import (
    Download,
    SourceImage,
    SourceShard,
    class_name,
    file_name,
    image_name,
)

TABLES = ("val_annotations.txt", "LOC_val_solution.csv")
NUM_TOGETHER = 1000  # images of val/ that are a shard


def images_in(folder: Path, download: Download) -> list[Path]:
    """The images directly in a folder, sorted by name. Raises UserError for a link out of the download, and OSError."""
    download.refuse_outside(folder)
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(IMG_EXTENSIONS):
                names.append(entry.name)
                if entry.is_symlink():
                    download.refuse_outside(folder / entry.name)
    return [folder / name for name in sorted(names)]


def find_flat_val(download: Download) -> Path | None:
    """The folder with the images of val/: val/images, val or the download itself; None where none is."""
    folder = download.path
    for images_folder in (folder / "val" / "images", folder / "val", folder):
        if images_folder.is_dir() and images_in(images_folder, download):
            return images_folder
    return None


def val_classes(download: Download, flat: Path, images: list[Path]) -> dict[str, str]:
    """The class of each image, by its name. Raises UserError where nothing says it, or not of each image."""
    names, folder = [path.name for path in images], download.path
    for table in (labels_folder / name for labels_folder in (flat, flat.parent, folder) for name in TABLES):
        if (content := read_list(table, download)) is not None:
            by_stem = parse_annotations(decode_text(content, table), table)
            class_of = {name: by_stem.get(os.path.splitext(name)[0], "") for name in names}
            if missing := [name for name, named in class_of.items() if not named]:
                raise UserError(f"{table} does not have the class of {missing[0]!r}, one of {len(missing)}")
            return class_of
    for labels_folder in (folder, folder.parent, flat):
        if devkit := find_devkit(labels_folder, download):
            return classes_by_place(names, devkit_classes(devkit), str(flat))
    raise UserError(
        f"nothing says which classes the {len(images)} images in {flat} are; put val_annotations.txt, Kaggle's "
        "LOC_val_solution.csv or ILSVRC2012_devkit_t12.tar.gz beside them"
    )


def folder_shards(download: Download, flat: Path) -> list[SourceShard]:
    """A shard for each class of train/, and some for the flat val/. Raises UserError, and OSError."""
    images = images_in(flat, download)
    class_of = val_classes(download, flat, images)
    named = [(class_name(class_of[path.name], flat.name), path) for path in images]
    shards = [
        make_shard(f"val {start}", "val", named[start : start + NUM_TOGETHER], download)
        for start in range(0, len(named), NUM_TOGETHER)
    ]
    train = download.path / "train"
    download.refuse_outside(train)
    for of_class in sorted(train.iterdir()) if train.is_dir() else []:
        if of_class.is_dir():
            name = class_name(of_class.name, "train")
            inner = of_class / "images" if (of_class / "images").is_dir() else of_class
            of_train = [(name, path) for path in images_in(inner, download)]
            shards.append(make_shard(f"train/{name}", "train", of_train, download))
    return shards


def make_shard(shard_name: str, split: str, named: list[tuple[str, Path]], download: Download) -> SourceShard:
    def read() -> Iterator[SourceImage]:
        for name, path in named:
            content = read_open_file(download.open(path), MAX_IMAGE_BYTES, str(path))
            if not content.startswith((*FIRST_BYTES.values(),)):
                raise UserError(f"{str(path)!r} begins as neither a JPEG nor a PNG, and is not copied; remove it")
            yield SourceImage(name, image_name(file_name(path.name, shard_name), shard_name), content)

    return SourceShard(shard_name, split, sum(path.stat().st_size for _, path in named), 0, read)
