"""Images in folders: train/ has class folders; val/, too, or it is flat, with a table or the devkit beside it.

Class folders may have folders in them, such as Tiny ImageNet's images/.
"""

import collections
import functools
from collections.abc import Iterator
from pathlib import Path

from scripts.data.entries import Entry, Shard, checked_class, image_entry, refuse
from scripts.data.labels import find_val_classes

NUM_TOGETHER = 1000  # images of val/ that are a shard
Named = list[tuple[str, str]]  # path below the source, and class


def folder_shards(folder: Path, files: list[str], left_out: collections.Counter[str]) -> tuple[list[Shard], bool]:
    """And whether val/ is flat. files: below `folder`; those of test are counted in left_out."""
    train: dict[str, Named] = collections.defaultdict(list)
    val: list[str] = []
    refused: list[Entry] = []
    for path in files:
        split, *inner = path.split("/")
        if split == "test":
            left_out["of test, which has no labels"] += 1
        elif split == "train" and len(inner) > 1:
            train[checked_class(inner[0], "train")].append((path, inner[0]))
        elif split == "val" and inner:
            val.append(path)
        else:
            refused.append(Entry(path, refused="is no image in a class folder of train/, or in val/"))
    flat = [path for path in val if path.count("/") == 1 or path.startswith("val/images/")]
    if len(flat) < len(val):
        refused += [Entry(path, refused="lies beside class folders of val/") for path in flat]
    refuse(refused, str(folder))
    if flat:
        class_of = find_val_classes(folder, flat)
        named = [*class_of.items()]
    else:
        named = [(path, path.split("/")[1]) for path in val]
    shards = [
        make_shard(folder, f"val {start}", "val", named[start : start + NUM_TOGETHER])
        for start in range(0, len(named), NUM_TOGETHER)
    ]
    return [*shards, *(make_shard(folder, f"train/{name}", "train", train[name]) for name in sorted(train))], bool(flat)


def make_shard(folder: Path, shard_name: str, split: str, named: Named) -> Shard:
    dead = [path for path, _ in named if not (folder / path).exists()]
    refuse((Entry(path, refused="leads nowhere; mount what it leads to") for path in dead), str(folder))
    num_bytes = sum((folder / path).stat().st_size for path, _ in named)
    return Shard(shard_name, split, num_bytes, 0, functools.partial(read_files, folder, named, shard_name))


def read_files(folder: Path, named: Named, shard_name: str) -> Iterator[Entry]:
    for path, name in named:
        yield image_entry(path, name, (folder / path).read_bytes(), shard_name)
