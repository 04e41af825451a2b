"""Finds out what a folder of downloads is: Parquet, ILSVRC2012's tars, WebDataset, or folders with a flat val/."""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import format_names, is_hidden, is_left_out
from scripts.data import parquet, tars
from scripts.data.entries import WNID, NamedImage, Shard, named_image
from scripts.data.labels import DEVKIT_ARCHIVE, devkit_classes, find_classes, find_val_classes
from scripts.shared.commands import bench_command

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
OTHER_DOWNLOADS = re.compile(r".*devkit.*|ILSVRC2012_(bbox|img_test|img_train_t3).*")
ARCHIVES = (".parquet", ".tar")
SPLIT_OF_WORD = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
NUM_TOGETHER = 1000  # images of a flat val/ that are a shard
EXPECTED = (
    "expected Parquet files with the columns image and label, WebDataset tars with .jpg and .cls, "
    f"{TRAIN_TAR} and {VAL_TAR} with the devkit, or val/ without class folders and with val_annotations.txt"
)
Reader = Callable[[Path, str, list[str]], Iterator[NamedImage]]
"""Takes path, name for messages, and classes."""


def find_source(folder: Path, classes: Path | None) -> list[Shard]:
    """Every file in the folder belongs to a shard, is left out by its name, or is refused. classes: the file with their
    names. Raises UserError and OSError."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; {EXPECTED}")
    files = list_files(folder)
    archives = [path for path in files if path.endswith(ARCHIVES)]
    if any(map(is_of_imagenet, archives)):
        refuse_others(folder, files, is_of_imagenet, "ILSVRC2012's tars")
        return [*ilsvrc_shards(folder, files)]
    if archives:
        ending = os.path.splitext(archives[0])[1]
        refuse_others(folder, files, lambda path: path.endswith(ending), f"{ending} files")
        read = parquet.read_parquet if ending == ".parquet" else tars.read_webdataset
        return shard_files(folder, files, read, find_classes(folder, classes))
    if not (folder / "val").is_dir():
        raise UserError(f"{folder} is nothing that can be imported; {EXPECTED}")
    if not any(is_flat(path) for path in files):
        raise UserError(f"{folder} has class folders already; use it as it is: {bench_command('run', data=folder)}")
    return folder_shards(folder, files)


def list_files(folder: Path) -> list[str]:
    """Without those that are left out; sorted."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        folders[:] = [name for name in folders if not is_hidden(name)]
        within = Path(place).relative_to(folder)
        found += [(within / name).as_posix() for name in names]
    return sorted(path for path in found if not is_without_images(path))


def is_without_images(path: str) -> bool:
    """By its name: hidden, text, of a test split, which has no labels, or of ImageNet's other downloads."""
    is_other = any(map(OTHER_DOWNLOADS.fullmatch, path.split("/")))
    is_test = path.startswith("test/") or (path.endswith(ARCHIVES) and split_of(path) == "test")
    return is_other or is_left_out(path) or (is_test and not is_of_imagenet(path))


def refuse_others(folder: Path, files: list[str], fits: Callable[[str], bool], expected: str) -> None:
    if others := [path for path in files if not fits(path)]:
        raise UserError(f"{folder}: {format_names(others)} are beside {expected}; move them out of the source")


def is_of_imagenet(path: str) -> bool:
    """A tar of image-net.org, or one that was in its tar of train."""
    stem, ending = os.path.splitext(os.path.basename(path))
    return ending == ".tar" and (f"{stem}.tar" in (TRAIN_TAR, VAL_TAR) or bool(WNID.fullmatch(stem)))


def split_of(path: str) -> str:
    """train, val or test; '' for none."""
    for text in reversed(path.lower().split("/")):
        for word in re.split(r"[^a-z]+", text):
            if word in SPLIT_OF_WORD:
                return SPLIT_OF_WORD[word]
    return ""


def shard_files(folder: Path, paths: list[str], read: Reader, classes: list[str]) -> list[Shard]:
    if unknown := [path for path in paths if not split_of(path)]:
        raise UserError(f"{format_names(unknown)} do not say of train or val; put them into folders of these names")
    return [
        Shard(path, split_of(path), (folder / path).stat().st_size, partial(read, folder / path, path, classes))
        for path in paths
    ]


def ilsvrc_shards(folder: Path, paths: list[str]) -> Iterator[Shard]:
    """One for each class of train, and one for val."""
    for name in paths:
        path = folder / name
        num_bytes = path.stat().st_size
        if path.name == TRAIN_TAR:
            for class_name, begin, size in tars.list_class_tars(path):
                inner = f"{name}/{class_name}.tar"
                yield Shard(inner, "train", size, partial(tars.read_class_tar, path, inner, class_name, begin))
        elif path.name == VAL_TAR:
            classes = devkit_classes(path.parent)
            if not classes:
                raise UserError(f"{path} has no labels; put {DEVKIT_ARCHIVE} beside it, which image-net.org has, too")
            yield Shard(name, "val", num_bytes, partial(tars.read_flat_tar, path, classes))
        else:
            yield Shard(name, "train", num_bytes, partial(tars.read_class_tar, path, name, path.stem))


def is_flat(path: str) -> bool:
    """An image of val/ outside of class folders."""
    return path.startswith("val/") and (path.count("/") == 1 or path.startswith("val/images/"))


def folder_shards(folder: Path, files: list[str]) -> list[Shard]:
    """Class folders of train/ may have folders in them, such as Tiny ImageNet's images/."""
    val = [path for path in files if is_flat(path)]
    train = [path for path in files if path.startswith("train/") and path.count("/") > 1]
    refuse_others(
        folder, files, {*val, *train}.__contains__, "the class folders of train/ and the images of a flat val/"
    )
    class_of = find_val_classes(folder, val)
    parts = [("val", val[start : start + NUM_TOGETHER]) for start in range(0, len(val), NUM_TOGETHER)]
    for name, of_class in itertools.groupby(train, lambda path: path.split("/")[1]):
        parts.append(("train", [*of_class]))
        class_of |= dict.fromkeys(parts[-1][1], name)
    return [
        Shard(
            f"{split}, from {paths[0]!r} on",
            split,
            sum((folder / path).stat().st_size for path in paths),
            partial(read_files, folder, {path: class_of[path] for path in paths}),
        )
        for split, paths in parts
    ]


def read_files(folder: Path, class_of: dict[str, str]) -> Iterator[NamedImage]:
    for path, name in class_of.items():
        yield named_image(path, name, (folder / path).read_bytes(), str(folder))
