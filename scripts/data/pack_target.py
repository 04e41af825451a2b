"""Images packed as they come: TO/packed/<kind>/train.safetensors and val.safetensors, and no file for each image.

Several threads pack several shards at once, each image behind the last one that was packed. So the images' bytes are in
no order; the tables, written at the end, are in the order of the folder. What they need of the images of a finished
shard waits in a JSON file below TO/.importing.
"""

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pandas

from benchmarks.common.config import Config, PackKind
from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from benchmarks.common.listing import Arrays, DamagedFile, fingerprint_of
from benchmarks.common.packed import SPLITS, PackedSource, pack_path
from scripts.data.chunks import encode_content
from scripts.data.entries import Source, SourceShard
from scripts.data.folder_target import refuse_existing, refuse_unknown_classes
from scripts.data.journal import WORKSHOP, Total, shard_key
from scripts.data.pack_file import check_pack, pack_metadata, write_tables
from scripts.data.progress import Progress
from scripts.shared.commands import bench_command

HEADER_BYTES = 1 << 20  # the classes are not known before the last shard is read: 21,841 of them take 0.6 MB
COLUMNS = ["class_name", "name", "num_bytes", "start", "end", "height", "width", "crc32"]
"""Of an image: the first three are of its file in the source, start and end of what is packed."""


class PackTarget:
    """kind, written_per_byte: as FolderTarget's."""

    written_per_byte = 0.0  # not known before some images are packed

    def __init__(self, folder: Path, pack: PackKind, source: Source):
        """Raises UserError where the source has only train or only val, and where packs lie in another folder."""
        if os.environ.get("PACKED"):
            raise UserError("PACKED is set, and an import packs below its own folder; unset PACKED")
        if missing := {*SPLITS} - {shard.split for shard in source.shards}:
            raise UserError(
                f"FROM has no {missing.pop()}, and a packed file names the images of both; "
                "import without --pack, add what is missing, and ./bench data pack packs both"
            )
        self.kind = f"{source.kind}, packed as {pack}"
        self._config = Config(data=str(folder), loader="packed", pack=pack)
        self._folder, self._workshop, self._source = folder, folder / WORKSHOP, source
        self._ends, self._lock = dict.fromkeys(SPLITS, 0), threading.Lock()

    def refuse_existing(self) -> None:
        """Raises UserError where packed files or folders of images are there already."""
        for split in SPLITS:
            refuse_existing(pack_path(self._config, split))
            refuse_existing(self._folder / split)  # a run would compare the packed files with its images

    def go_on(self, finished: list[SourceShard]) -> None:
        """After a kill: new images go behind those of finished shards."""
        for shard in [] if self._are_in_place() else finished:
            self._ends[shard.split] = max([self._ends[shard.split], *self._read_table(shard)["end"]])

    def write_shard(self, shard: SourceShard, progress: Progress) -> Total:
        """Raises what reading raises, and OSError."""
        rows: list[tuple[Any, ...]] = []
        unfinished = self._unfinished(shard.split)
        unfinished.touch()
        with open(unfinished, "r+b") as file:
            for image in shard.read():
                content = bytes(image.content)
                stored, shape = encode_content(content, self._config.pack, f"{shard.name}: {image.name}")
                start = self._reserve(shard.split, len(stored))
                file.seek(HEADER_BYTES + start)
                file.write(stored)
                place = (start, start + len(stored), *shape, zlib.crc32(stored))
                rows.append((image.class_name, image.name, len(content), *place))
                progress.add(len(content), len(stored))
        path = self._table_path(shard)
        path.parent.mkdir(exist_ok=True)
        replace_atomically(path, lambda file: file.write(json.dumps(rows).encode()))
        num_bytes = sum(row[COLUMNS.index("num_bytes")] for row in rows)
        progress.add(shard.num_bytes - num_bytes, 0)  # what is in a shard beside its images
        return Total(len(rows), num_bytes)

    def put_in_place(self, totals: dict[str, Total]) -> None:
        """Write the tables, check the packed files, and rename both.

        Raises UserError where classes do not fit, where images have one name, or where a file is not as it was written.
        """
        if self._are_in_place():  # a kill came while the rest was removed
            return
        tables = {split: self._sorted_table(split) for split in totals}
        refuse_unknown_classes(*({*tables[split]["class_name"]} for split in SPLITS))
        fingerprint = fingerprint_of(names_and_sizes(tables[split]) for split in SPLITS)
        # one after a kill between two renames
        unfinished = [split for split in SPLITS if self._unfinished(split).exists()]
        for split in unfinished:
            self._finish(split, tables[split], fingerprint)
        for split in unfinished:
            path = pack_path(self._config, split)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.rename(self._unfinished(split), path)

    def report(self, totals: dict[str, Total]) -> None:
        """Print what there is now."""
        for split, total in totals.items():
            pack = PackedSource(pack_path(self._config, split))
            size_gb = pack.path.stat().st_size / 1e9
            print(
                f"{pack.path}: {total.num_images:,} images of {len(pack.classes):,} classes, {size_gb:.3g} GB, "
                f"of {total.num_bytes:,} bytes in the source"
            )
            if num_bad := sum(not len(pack.stored(index)) for index in range(len(pack))):
                print(f"  warning: {num_bad} not readable; a run that meets one of them says so")
        print(f"fingerprint {PackedSource(pack_path(self._config, 'train')).metadata['fingerprint']}")
        command = bench_command("run single", data=self._config.data)
        print(f"train on it: {command} -- --loader packed --pack {self._config.pack}")

    def _are_in_place(self) -> bool:
        """Whether the import ended, and a kill came while .importing was removed."""
        return all(pack_path(self._config, split).exists() and not self._unfinished(split).exists() for split in SPLITS)

    def _unfinished(self, split: str) -> Path:
        return self._workshop / f"{split}.safetensors"

    def _reserve(self, split: str, num_bytes: int) -> int:
        """Where the next image of a split begins."""
        with self._lock:
            start = self._ends[split]
            self._ends[split] += num_bytes
        return start

    def _table_path(self, shard: SourceShard) -> Path:
        name = hashlib.sha256(shard_key(shard).encode()).hexdigest()
        return self._workshop / "tables" / f"{name}.json"

    def _read_table(self, shard: SourceShard) -> pandas.DataFrame:
        """Raises UserError where it is gone or damaged."""
        path = self._table_path(shard)
        try:
            return pandas.DataFrame(json.loads(path.read_bytes()), columns=COLUMNS)
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); remove {self._workshop}") from None

    def _sorted_table(self, split: str) -> pandas.DataFrame:
        """All images of a split, in the folder's order. Raises UserError where one is there twice."""
        tables = [self._read_table(shard) for shard in self._source.shards if shard.split == split]
        tables = [table for table in tables if len(table)]  # columns of an empty one have no types
        if not tables:
            raise UserError(f"the source has no image of {split}")
        table = pandas.concat(tables).sort_values(["class_name", "name"], ignore_index=True)
        twice = table[table.duplicated(["class_name", "name"])]
        if len(twice):
            image = twice.iloc[0]
            raise UserError(f"{image['name']!r} of class {image['class_name']} is there twice in {split}")
        return table

    def _finish(self, split: str, table: pandas.DataFrame, fingerprint: str) -> None:
        path = self._unfinished(split)
        metadata = pack_metadata(self._config.pack, split, table["class_name"].unique().tolist(), fingerprint)
        with open(path, "r+b") as file:
            file.truncate(HEADER_BYTES + int(table["end"].max()))
            write_tables(file, metadata, tables_of(table), HEADER_BYTES)
        try:
            check_pack(PackedSource(path))
        except DamagedFile as error:
            raise UserError(
                f"{path} is not as it was written: {error}; is its disk sound? remove {self._workshop}, and begin again"
            ) from None


def names_and_sizes(table: pandas.DataFrame) -> Iterator[tuple[str, list[str], list[int]]]:
    """The classes as fingerprint_of takes them."""
    for class_name, images in table.groupby("class_name"):
        sizes = images["num_bytes"].tolist()
        yield str(class_name), images["name"].tolist(), [sizes[0], sizes[-1]]


def tables_of(table: pandas.DataFrame) -> Arrays:
    """The tables of a packed file; images are in the folder's order in `table`."""
    return {
        "starts": table["start"].to_numpy("<i8"),
        "ends": table["end"].to_numpy("<i8"),
        "shapes": numpy.ascontiguousarray(table[["height", "width"]].to_numpy("<i4")),
        "targets": table.groupby("class_name").ngroup().to_numpy("<i4"),
        "checksums": table["crc32"].to_numpy("<u4"),
    }
