"""Bring ImageNet, as it is had from hubs and from image-net.org, into folders or into packed files.

    ./bench data import FROM TO

FROM: a folder with Parquet files, WebDataset's tars, ILSVRC2012's tars and devkit, or a flat val folder. TO gets
train/<class>/ and val/<class>/, or with --pack packed files. After a kill the same command goes on.
"""

import os
from typing import TYPE_CHECKING

from benchmarks.common.errors import UserError
from scripts.data import write_shards
from scripts.data.entries import Count, Source
from scripts.data.find_source import find_source
from scripts.data.folder_target import WORKSHOP, FolderTarget
from scripts.data.options import ImportOptions

if TYPE_CHECKING:
    from scripts.data.pack_target import PackTarget


def main(options: ImportOptions) -> int:
    with write_shards.disk_errors(options.source, options.to, "the same command goes on"):
        source = find_source(options.source, options.classes)
        target = FolderTarget(options.to, source) if options.pack is None else pack_target(options, source)
        counts = write_shards.write_source(source, target)
    target.report(counts)
    total = Count(left_out=source.left_out)
    for count in counts.values():
        total.add(count)
    print(total.text())
    return 0


def pack_target(options: ImportOptions, source: Source) -> "PackTarget":
    """Raises UserError where the source has only train or only val, and where PACKED names another folder."""
    from benchmarks.common.config import Config
    from scripts.data.pack_target import PackTarget  # imports torch, which folders do not need

    if os.environ.get("PACKED"):
        raise UserError("PACKED is set, and an import packs below its own folder; unset PACKED")
    if missing := {"train", "val"} - {shard.split for shard in source.shards}:
        raise UserError(
            f"FROM has no {missing.pop()}, and a packed file names the images of both; "
            "import without --pack, add what is missing, and ./bench data pack packs both"
        )
    config = Config(data=str(options.to), loader="packed", pack=options.pack or "full")
    return PackTarget(config, source, options.to / WORKSHOP)
