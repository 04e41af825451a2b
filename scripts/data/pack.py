"""Pack a folder's images into one file for train/ and one for val/, which training maps instead of decoding JPEGs.

    ./bench data pack --data data/imagenet-mini --pack full

full holds every pixel (ImageNet: about 700 GB); 256 the images shrunk to 256 pixels on the shorter side (350 GB);
jpeg256 those as JPEGs of quality 90 (31 GB). Only full trains on the same pixels as the folder. Started again after
it was stopped or killed, it goes on; a packed file of these images is kept.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.listing import DamagedFile, ImageListing, fingerprint, list_images
from benchmarks.common.packed import SPLITS, PackedSource, pack_path
from scripts.data.check import check_image_folder
from scripts.data.entries import Entry, Shard, Source
from scripts.data.options import PackOptions
from scripts.data.pack_target import PackTarget
from scripts.data.write_shards import disk_errors, write_source

WORKSHOP = ".packing"  # beside the packed files
NUM_TOGETHER = 64  # images that one thread packs, and that a kill loses


def main(options: PackOptions) -> None:
    config, root = Config(data=options.data, loader="packed", pack=options.pack), Path(options.data)
    check_image_folder(root)
    folder = pack_path(config, "train").parent
    with disk_errors(root, folder, "mend it, or give another folder by PACKED, and run ./bench data pack again"):
        of_images = fingerprint(root)
        todo = [split for split in SPLITS if not is_complete(pack_path(config, split), of_images)]
        shards = [shard for split in todo for shard in listed_shards(list_images(root / split), split)]
        if not shards:
            return
        source = Source(f"folder {of_images}", shards)
        target = PackTarget(config, source, folder / WORKSHOP, of_images)
        counts = write_source(source, target)
    target.report(counts)


def listed_shards(listing: ImageListing, split: str) -> Iterator[Shard]:
    for start in range(0, len(listing), NUM_TOGETHER):
        numbers = range(start, min(start + NUM_TOGETHER, len(listing)))
        num_bytes = int(listing.sizes[start : numbers.stop].sum())
        yield Shard(f"{split} {start}", split, num_bytes, 0, functools.partial(read_listed, listing, numbers))


def read_listed(listing: ImageListing, numbers: range) -> Iterator[Entry]:
    for number in numbers:
        path, class_name = Path(listing.path(number)), listing.classes[listing.target(number)]
        name = path.relative_to(listing.folder / class_name).as_posix()
        yield Entry(str(path), class_name, name, path.read_bytes())


def is_complete(path: Path, of_images: str) -> bool:
    """Raises UserError for a file of other images where PACKED names the folder: it may be another data set's."""
    if not path.exists():
        return False
    try:
        pack = PackedSource(path)
    except (OSError, DamagedFile) as error:
        print(f"{path} is written anew: {error}")
        return False
    if (pack.metadata.get("fingerprint"), pack.metadata.get("part")) == (of_images, path.stem):
        print(f"{path} is there: {len(pack)} images")
        return True
    if os.environ.get("PACKED"):
        raise UserError(f"{path} is of other images; give another folder by PACKED, or remove it")
    print(f"{path} is of other images, and is written anew")
    return False
