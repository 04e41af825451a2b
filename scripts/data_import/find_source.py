"""Finds out what a folder of downloads is: Parquet, ILSVRC2012's tars, WebDataset, or a flat val folder."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common.system.commands import bench_command
from benchmarks.common.system.errors import UserError
from scripts.data_import import folder_shards, parquet_shards, tar_shards
from scripts.data_import.class_lists import devkit_classes, find_classes, find_devkit
from scripts.data_import.source_images import Archive, Download, Source, SourceImage, SourceShard, split_of

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
ARCHIVES = (".parquet", ".tar")
EXPECTED = (
    "expected Parquet files with the columns image and label, WebDataset tars with .jpg and .cls, "
    f"{TRAIN_TAR} and {VAL_TAR} with the devkit, or val/ without class folders and with val_annotations.txt"
)
Reader = Callable[[Archive, list[str]], Iterator[SourceImage]]


def find_source(given: Path, classes: Path | None) -> Source:
    """What there is to import in a folder, or in one file. classes: the file with the classes' names, if one is given.

    Raises UserError where it is none of the sources, and OSError for what cannot be read.
    """
    if not given.exists():
        raise UserError(f"{given} does not exist")
    folder = given if given.is_dir() else given.parent
    download = Download.at(given)
    paths = [given] if given.is_file() else find_archives(download)
    if parquet := [path for path in paths if path.suffix == ".parquet"]:
        classes_of = find_classes(folder, download, classes)
        return shard_files("Parquet", folder, parquet, download, parquet_shards.read_parquet, classes_of)
    if tars := [path for path in paths if path.name in (TRAIN_TAR, VAL_TAR)]:
        return Source("ILSVRC2012's tars", [*ilsvrc_shards(tars, download)])
    if tars := [path for path in paths if path.suffix == ".tar"]:
        classes_of = find_classes(folder, download, classes)
        return shard_files("WebDataset", folder, tars, download, tar_shards.read_webdataset, classes_of)
    if given.is_dir() and (flat := folder_shards.find_flat_val(download)):
        return Source("folder with a flat val", folder_shards.folder_shards(download, flat))
    if all((given / split).is_dir() for split in ("train", "val")):
        raise UserError(f"{given} has class folders already; use it as it is: {bench_command('run', data=given)}")
    raise UserError(f"{given} is nothing that can be imported; {EXPECTED}")


def find_archives(download: Download) -> list[Path]:
    """All Parquet and tar files below its folder, sorted. The hub's cache has links to files, which are followed.

    Raises UserError for one that is no regular file, such as a FIFO, and as Download.refuse_outside does: a link could
    lead to a private file of the user's. Raises UserError for a folder that can be entered but not listed, and for a
    link to a folder with such files elsewhere: it is not followed.
    """
    found, links = [], []
    for path, folders, names in os.walk(download.path, onerror=_refuse_unlisted):
        found += [Path(path, name) for name in names if name.endswith(ARCHIVES)]
        links += [Path(path, name) for name in folders if Path(path, name).is_symlink()]
    for link in links:
        elsewhere = not link.resolve().is_relative_to(download.path.resolve())
        if elsewhere and any(name.endswith(ARCHIVES) for _, _, names in os.walk(link) for name in names):
            raise UserError(
                f"{str(link)!r} is a link to a folder with shards, which is not followed: put a copy in its place, or "
                "remove it"
            )
    if strange := [path for path in found if not path.is_file()]:
        raise UserError(f"{str(strange[0])!r} is not a regular file; remove it")
    for archive in found:
        if archive.is_symlink():
            download.refuse_outside(archive)
    return sorted(found)


def _refuse_unlisted(error: OSError) -> None:
    """For os.walk, which leaves out what it cannot list, such as lost+found, which only root can enter."""
    if os.access(error.filename, os.X_OK):
        raise UserError(f"{error.filename!r} cannot be listed ({error.strerror}); chmod u+rx, or move it away")


def shard_files(
    kind: str, folder: Path, paths: list[Path], download: Download, reader: Reader, classes: list[str]
) -> Source:
    """A shard for each file; those of a test split, which has no labels, are left out."""
    splits = {path: split_of(path.relative_to(folder).as_posix()) for path in paths}
    if tests := [path for path, split in splits.items() if split == "test"]:
        print(f"{len(tests)} files of the test split are left out: it has no labels")
    used = [path for path in paths if splits[path] != "test"]
    shards = []
    for path in used:
        name, status = path.relative_to(folder).as_posix(), path.stat()
        read = functools.partial(reader, Archive(download, path, name), classes)
        shards.append(SourceShard(name, splits[path], status.st_size, status.st_mtime_ns, read))
    return Source(kind, shards)


def ilsvrc_shards(tars: list[Path], download: Download) -> Iterator[SourceShard]:
    """A shard for each class of train, and one for val. Raises UserError where the devkit is missing for val."""
    for path in tars:
        time_ns, archive = path.stat().st_mtime_ns, Archive(download, path, path.name)
        if path.name == TRAIN_TAR:
            for name, begin, size in tar_shards.list_class_tars(archive):
                shard_name = f"{path.name}/{name}.tar"
                read = functools.partial(tar_shards.read_class_tar, archive, shard_name, name, begin, size)
                yield SourceShard(shard_name, "train", size, time_ns, read)
        else:
            devkit = find_devkit(path.parent, download)
            if not devkit:
                raise UserError(
                    f"{path} has no labels; put ILSVRC2012_devkit_t12.tar.gz beside it, which image-net.org has, too"
                )
            read = functools.partial(tar_shards.read_flat_tar, archive, devkit_classes(devkit))
            yield SourceShard(path.name, "val", path.stat().st_size, time_ns, read)
