"""Finds out what a folder of downloads is: Parquet, ILSVRC2012's tars, WebDataset, or a flat val folder."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from scripts.data import folders, parquet, tar_shards
from scripts.data.entries import Source, SourceImage, SourceShard, split_of
from scripts.data.labels import devkit_classes, find_classes, find_devkit
from scripts.shared.commands import bench_command

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
ARCHIVES = (".parquet", ".tar")
EXPECTED = (
    "expected Parquet files with the columns image and label, WebDataset tars with .jpg and .cls, "
    f"{TRAIN_TAR} and {VAL_TAR} with the devkit, or val/ without class folders and with val_annotations.txt"
)
Reader = Callable[[Path, str, list[str]], Iterator[SourceImage]]
"""Reads a shard: its path, its name for messages, and the names of the classes."""


def find_source(given: Path, classes: Path | None) -> Source:
    """What there is to import in a folder, or in one file. classes: the file with the classes' names, if one is given.

    Raises UserError where it is none of the sources, and OSError for what cannot be read.
    """
    if not given.exists():
        raise UserError(f"{given} does not exist")
    folder = given if given.is_dir() else given.parent
    paths = [given] if given.is_file() else find_archives(given)
    if files := [path for path in paths if path.suffix == ".parquet"]:
        return shard_files("Parquet", folder, files, parquet.read_parquet, find_classes(folder, classes))
    if tars := [path for path in paths if path.name in (TRAIN_TAR, VAL_TAR)]:
        return Source("ILSVRC2012's tars", [*ilsvrc_shards(tars)])
    if tars := [path for path in paths if path.suffix == ".tar"]:
        return shard_files("WebDataset", folder, tars, tar_shards.read_webdataset, find_classes(folder, classes))
    if given.is_dir() and (flat := folders.find_flat_val(given)):
        return Source("folder with a flat val", folders.folder_shards(given, flat))
    if all((given / split).is_dir() for split in ("train", "val")):
        raise UserError(f"{given} has class folders already; use it as it is: {bench_command('run', data=given)}")
    raise UserError(f"{given} is nothing that can be imported; {EXPECTED}")


def find_archives(folder: Path) -> list[Path]:
    """All Parquet and tar files below a folder, sorted; links are followed, and each file is taken once.

    Raises UserError for a folder that can be entered but not listed.
    """
    found: dict[str, Path] = {}
    for place, inner, names in os.walk(folder, onerror=_refuse_unlisted, followlinks=True):
        inner.sort()
        for path in (Path(place, name) for name in names if name.endswith(ARCHIVES)):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _refuse_unlisted(error: OSError) -> None:
    """For os.walk, which leaves out what it cannot list, such as lost+found, which only root can enter."""
    if os.access(error.filename, os.X_OK):
        raise UserError(f"{error.filename!r} cannot be listed ({error.strerror}); chmod u+rx, or move it away")


def shard_files(kind: str, folder: Path, paths: list[Path], reader: Reader, classes: list[str]) -> Source:
    """A shard for each file; those of a test split, which has no labels, are left out."""
    splits = {path: split_of(path.relative_to(folder).as_posix()) for path in paths}
    if tests := [path for path, split in splits.items() if split == "test"]:
        print(f"{len(tests)} files of the test split are left out: it has no labels")
    used = [path for path in paths if splits[path] != "test"]
    shards = []
    for path in used:
        name, status = path.relative_to(folder).as_posix(), path.stat()
        read = functools.partial(reader, path, name, classes)
        shards.append(SourceShard(name, splits[path], status.st_size, status.st_mtime_ns, read))
    return Source(kind, shards)


def ilsvrc_shards(tars: list[Path]) -> Iterator[SourceShard]:
    """A shard for each class of train, and one for val. Raises UserError where the devkit is missing for val."""
    for path in tars:
        time_ns = path.stat().st_mtime_ns
        if path.name == TRAIN_TAR:
            for name, begin, size in tar_shards.list_class_tars(path):
                shard_name = f"{path.name}/{name}.tar"
                read = functools.partial(tar_shards.read_class_tar, path, shard_name, name, begin, size)
                yield SourceShard(shard_name, "train", size, time_ns, read)
        else:
            devkit = find_devkit(path.parent)
            if not devkit:
                raise UserError(
                    f"{path} has no labels; put ILSVRC2012_devkit_t12.tar.gz beside it, which image-net.org has, too"
                )
            read = functools.partial(tar_shards.read_flat_tar, path, devkit_classes(devkit))
            yield SourceShard(path.name, "val", path.stat().st_size, time_ns, read)
