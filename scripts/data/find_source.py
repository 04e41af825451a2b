"""Finds out what a folder of downloads is: Parquet, ILSVRC2012's tars, WebDataset, or folders with a flat val/."""

import collections
import functools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import is_hidden
from scripts.data import parquet, tars
from scripts.data.entries import WNID, Entry, Shard, Source, refuse, without_image
from scripts.data.folders import folder_shards
from scripts.data.labels import DEVKIT_ARCHIVE, devkit_classes, find_classes
from scripts.shared.commands import bench_command

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
OTHER_DOWNLOADS = re.compile(r".*devkit.*|ILSVRC2012_(bbox|img_test|img_train_t3).*")
ARCHIVES = (".parquet", ".tar")
SPLIT_OF_WORD = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>\d+)(-of-(?P<all>\d+).*|\D*)\.\w+")
EXPECTED = (
    "expected Parquet files with the columns image and label, WebDataset tars with .jpg and .cls, "
    f"{TRAIN_TAR} and {VAL_TAR} with the devkit, or val/ without class folders and with val_annotations.txt"
)
Reader = Callable[[Path, str, list[str]], Iterator[Entry]]
"""Takes path, name for messages, and classes."""


def find_source(given: Path, classes: Path | None) -> Source:
    """Every file below `given` belongs to a shard, is counted as left out, or is refused. classes: the file with their
    names. Raises UserError and OSError."""
    if not given.exists():
        raise UserError(f"{given} does not exist")
    left_out: collections.Counter[str] = collections.Counter()
    folder, files = (given, list_files(given, left_out)) if given.is_dir() else (given.parent, [given.name])
    archives = [path for path in files if path.endswith(ARCHIVES)]
    beside = [path for path in files if not path.endswith(ARCHIVES)]
    if of_imagenet := [path for path in archives if is_of_imagenet(path)]:
        others = [path for path in archives if path not in of_imagenet]
        refuse((Entry(path, refused="is none of ILSVRC2012's tars") for path in others), str(given))
        shards = [*ilsvrc_shards(folder, of_imagenet), *folder_shards(folder, beside, left_out)[0]]
        return Source("ILSVRC2012's tars", shards, left_out)
    if archives:
        ending = os.path.splitext(archives[0])[1]
        refuse((Entry(path, refused=f"is no {ending} file") for path in files if not path.endswith(ending)), str(given))
        refuse_gaps(archives)
        names = find_classes(folder, classes)
        if ending == ".parquet":
            return Source("Parquet", shard_files(folder, archives, parquet.read_parquet, names), left_out)
        return Source("WebDataset", shard_files(folder, archives, tars.read_webdataset, names), left_out)
    if (given / "val").is_dir():
        shards, is_flat = folder_shards(folder, beside, left_out)
        if is_flat:
            return Source("folder with a flat val", shards, left_out)
        raise UserError(f"{given} has class folders already; use it as it is: {bench_command('run', data=given)}")
    raise UserError(f"{given} is nothing that can be imported; {EXPECTED}")


def list_files(folder: Path, left_out: collections.Counter[str]) -> list[str]:
    """Sorted; others are counted in left_out."""

    def fail(error: OSError) -> None:
        raise error

    found = []
    for place, folders, names in os.walk(folder, onerror=fail, followlinks=True):
        left_out["hidden"] += sum(map(is_hidden, folders))
        folders[:] = [name for name in folders if not is_hidden(name)]
        within = os.path.relpath(place, folder)
        for path in names if within == "." else [f"{within}/{name}" for name in names]:
            if reason := why_no_shard(path):
                left_out[reason] += 1
            else:
                found.append(path)
    return sorted(found)


def why_no_shard(path: str) -> str:
    """By its name; '' where it may be a shard or an image."""
    if any(map(OTHER_DOWNLOADS.fullmatch, path.split("/"))):
        return "of ImageNet's other downloads"
    if reason := without_image(path):
        return reason
    is_test = path.endswith(ARCHIVES) and not is_of_imagenet(path) and split_of(path) == "test"
    return "of test, which has no labels" if is_test else ""


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


def refuse_gaps(paths: list[str]) -> None:
    """By names such as 00001-of-00003, or 2 after 0."""
    groups: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
    for path in paths:
        if found := NUMBERED.fullmatch(path):
            groups[found["before"], found["all"] or ""].add(int(found["number"]))
    for (before, of_all), there in groups.items():
        if not of_all and len(there) == 1:
            continue  # a number such as a year
        if of_all:
            first = int(int(of_all) in there)  # numbers may begin at 1
            expected = range(first, first + int(of_all))
        else:
            expected = range(0 if 0 in there else 1, max(there) + 1)
        missing = sorted({*expected} - there)
        if missing:
            raise UserError(
                f"{before}* lacks {len(missing):,} of its shards, number {missing[0]} first; download what is missing, "
                "or give the files that are there the next numbers"
            )


def shard_files(folder: Path, paths: list[str], read: Reader, classes: list[str]) -> list[Shard]:
    shards = []
    for path in paths:
        split, status = split_of(path), (folder / path).stat()
        if not split:
            raise UserError(
                f"{path!r} does not say whether it is of train or of val; put it into a folder named train or val"
            )
        named = functools.partial(read, folder / path, path, classes)
        shards.append(Shard(path, split, status.st_size, status.st_mtime_ns, named))
    return shards


def ilsvrc_shards(folder: Path, paths: list[str]) -> Iterator[Shard]:
    """One for each class of train, and one for val."""
    for name in paths:
        path = folder / name
        status = path.stat()
        if path.name == TRAIN_TAR:
            for class_name, begin, size in tars.list_class_tars(path):
                shard_name = f"{name}/{class_name}.tar"
                read = functools.partial(tars.read_class_tar, path, shard_name, class_name, begin, size)
                yield Shard(shard_name, "train", size, status.st_mtime_ns, read)
        elif path.name == VAL_TAR:
            classes = devkit_classes(path.parent)
            if not classes:
                raise UserError(f"{path} has no labels; put {DEVKIT_ARCHIVE} beside it, which image-net.org has, too")
            read = functools.partial(tars.read_flat_tar, path, classes)
            yield Shard(name, "val", status.st_size, status.st_mtime_ns, read)
        else:
            read = functools.partial(tars.read_class_tar, path, name, path.stem)
            yield Shard(name, "train", status.st_size, status.st_mtime_ns, read)
