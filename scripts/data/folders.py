"""Images in folders: train/ has class folders. val/ may be flat, with a table or the devkit that says the classes.

Class folders may have folders in them, such as Tiny ImageNet's images/.
"""

import collections
import functools
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import format_names
from scripts.data.entries import Entry, Shard, checked_class, image_entry, refuse
from scripts.data.labels import find_val_classes

NUM_TOGETHER = 1000  # images of val/ that are a shard
DEAD = "leads nowhere; mount what it leads to"
Named = list[tuple[str, str]]  # path below the source, and class


def folder_shards(folder: Path, files: list[str], left_out: collections.Counter[str]) -> tuple[list[Shard], bool]:
    """A shard for each class of train/, and some for val/; and whether val/ has images outside of class folders.

    files: below `folder`, that may be images; those of test are counted in left_out. Raises UserError, and OSError.
    """
    train: dict[str, Named] = collections.defaultdict(list)
    val: list[str] = []
    refused: list[Entry] = []
    has_val = (folder / "val").is_dir()
    for path in files:
        split, _, inner = path.partition("/")
        if split == "test":
            left_out["of test, which has no labels"] += 1
        elif split == "train" and "/" in inner:
            name = inner.partition("/")[0]
            train[checked_class(name, "train")].append((path, name))
        elif not (folder / path).exists():  # a class folder's link, too
            refused.append(Entry(path, refused=DEAD))
        elif split == "val" if has_val else path in (split, f"images/{inner}") and "/" not in inner:
            val.append(path)
        else:
            refused.append(Entry(path, refused="lies outside of the class folders of train/ and of val/"))
    refuse(refused, str(folder))
    named, is_flat = class_val(folder, val, has_val)
    shards = [
        make_shard(folder, f"val {start}", "val", named[start : start + NUM_TOGETHER])
        for start in range(0, len(named), NUM_TOGETHER)
    ]
    return [*shards, *(make_shard(folder, f"train/{name}", "train", train[name]) for name in sorted(train))], is_flat


def class_val(folder: Path, paths: list[str], has_val: bool) -> tuple[Named, bool]:
    """The class of each image of val/, and whether some are in no class folder.

    Raises UserError where nothing says a class, or where a table and a folder say two.
    """
    inner = [path.split("/")[1:] if has_val else path.split("/") for path in paths]
    by_folder = [parts[0] if len(parts) > 1 and parts[0] != "images" else "" for parts in inner]
    if all(by_folder):
        return [*zip(paths, by_folder, strict=True)], False
    names = [parts[-1] for parts in inner]
    if twice := [name for name, number in collections.Counter(names).items() if number > 1]:
        raise UserError(f"{folder}: val has {format_names(twice)} twice; remove the wrong ones")
    flat = folder / "val" if has_val else folder
    class_of = find_val_classes(folder, flat, names)
    if not class_of:
        loose = [path for path, name in zip(paths, by_folder, strict=True) if not name]
        raise UserError(
            f"nothing says which classes the {len(loose):,} images {format_names(loose)} are; put val_annotations.txt, "
            "Kaggle's LOC_val_solution.csv or ILSVRC2012_devkit_t12.tar.gz beside them"
        )
    differ = [name for name, given in zip(names, by_folder, strict=True) if given not in ("", class_of[name])]
    if differ:
        raise UserError(
            f"{folder}: the class folders and the table of val have other classes of {format_names(differ)}"
        )
    return [(path, class_of[name]) for path, name in zip(paths, names, strict=True)], True


def make_shard(folder: Path, shard_name: str, split: str, named: Named) -> Shard:
    """Raises UserError for a link that leads nowhere, and OSError."""
    num_bytes = 0
    dead: list[Entry] = []
    for path, _ in named:
        try:
            num_bytes += (folder / path).stat().st_size
        except FileNotFoundError:
            dead.append(Entry(path, refused=DEAD))
    refuse(dead, str(folder))
    return Shard(shard_name, split, num_bytes, 0, functools.partial(read_files, folder, named, shard_name))


def read_files(folder: Path, named: Named, shard_name: str) -> Iterator[Entry]:
    for path, name in named:
        yield image_entry(path, name, (folder / path).read_bytes(), shard_name)
