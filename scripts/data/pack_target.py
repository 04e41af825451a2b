"""Packed files, written as images come: train.safetensors and val.safetensors, and no file for each image.

Several threads pack several shards at once, each image behind the last one that was packed. So the images' bytes are in
no order; the tables, written at the end, are in the order of the folder.
"""

import io
import itertools
import json
import os
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy
from PIL import Image

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import open_image
from benchmarks.common.listing import ALIGNED, Arrays, ArrayShapes, file_header, fingerprint_of
from benchmarks.common.packed import FILE_KIND, SPLITS, VERSION, PackedSource, pack_path
from scripts.data.entries import Count, Entry, Shard, Source
from scripts.data.folder_target import refuse_existing, refuse_unknown_classes
from scripts.shared.commands import bench_command

HEADER_BYTES = 1 << 20  # the classes are not known before the last shard is read: 21,841 of them take 0.6 MB
SHORT_SIDE, QUALITY = 256, 90  # pixels; of JPEGs
Row = tuple[Any, ...]
"""Of an image: class, name, bytes in the source, first byte and the one after the last, height, width, CRC-32."""


class PackTarget:
    """of_images: the fingerprint, where it is known; packed files that are there are then replaced."""

    written_per_byte = 0.0  # nobody knows

    def __init__(self, config: Config, source: Source, workshop: Path, of_images: str = ""):
        self.kind = f"{source.kind}, packed as {config.pack}"
        self.workshop = workshop
        self._config, self._of_images = config, of_images
        self._splits = sorted({shard.split for shard in source.shards})
        self._ends, self._lock = dict.fromkeys(SPLITS, 0), threading.Lock()

    def refuse_existing(self) -> None:
        for split in [] if self._of_images else self._splits:
            refuse_existing(pack_path(self._config, split))
            refuse_existing(Path(self._config.data, split))  # a run would compare the packed files with its images

    def go_on(self, finished: list[tuple[Shard, Count]]) -> None:
        """New images go behind those of finished shards."""
        for shard, count in finished:
            self._ends[shard.split] = max([self._ends[shard.split], *(row[4] for row in count.rows)])

    def write_shard(self, shard: Shard, images: Iterator[Entry], count: Count) -> None:
        unfinished = self._unfinished(shard.split)
        unfinished.touch()
        with open(unfinished, "r+b") as file:
            for image in images:
                content = bytes(image.content)
                stored, shape = encode(content, self._config.pack)
                start = self._reserve(shard.split, len(stored))
                file.seek(HEADER_BYTES + start)
                file.write(stored)
                place = (start, start + len(stored), *shape, zlib.crc32(stored))
                count.rows.append([image.class_name, image.name, len(content), *place])

    def put_in_place(self, counts: dict[str, Count]) -> None:
        """Raises UserError where val has other classes than train, or images have one name."""
        rows = {split: sorted_rows(counts[split].rows, split) for split in self._splits}
        if not self._of_images:
            refuse_unknown_classes(*({row[0] for row in rows[split]} for split in SPLITS))
            self._of_images = fingerprint_of(names_and_sizes(rows[split]).items() for split in SPLITS)
        unfinished = [
            split for split in self._splits if self._unfinished(split).exists()
        ]  # a kill came between renames
        for split in unfinished:
            with open(self._unfinished(split), "r+b") as file:
                file.truncate(HEADER_BYTES + max(row[4] for row in rows[split]))
                metadata = {"kind": self._config.pack, "part": split, "fingerprint": self._of_images}
                write_tables(file, metadata, rows[split])
        for split in unfinished:
            path = pack_path(self._config, split)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(self._unfinished(split), path)

    def report(self, counts: dict[str, Count]) -> None:
        for split, count in counts.items():
            pack = PackedSource(pack_path(self._config, split))
            print(
                f"{pack.path}: {count.num_images:,} images of {len(pack.classes):,} classes, "
                f"{pack.path.stat().st_size / 1e9:.3g} GB, of {count.num_bytes:,} bytes in the source"
            )
            bad = [f"{row[0]}/{row[1]}" for row in count.rows if row[3] == row[4]]
            if bad:
                names = ", ".join(map(repr, bad[:3]))
                print(f"  warning: {len(bad)} not readable, such as {names}; a run that meets one of them says so")
            print(f"fingerprint {pack.metadata['fingerprint']}")
        command = bench_command("run single", data=self._config.data)
        print(f"train on it: {command} -- --loader packed --pack {self._config.pack}")

    def _unfinished(self, split: str) -> Path:
        return self.workshop / f"{split}.safetensors"

    def _reserve(self, split: str, num_bytes: int) -> int:
        with self._lock:
            start = self._ends[split]
            self._ends[split] += num_bytes
        return start


def encode(content: bytes, kind: str) -> tuple[bytes, tuple[int, int]]:
    """What is stored, and its height and width; nothing of an image that Pillow cannot decode."""
    try:
        with open_image(content) as opened:
            image = opened.convert("RGB")
    except MemoryError:
        raise  # the image itself may be good
    except Exception:  # Pillow raises errors of many types for damaged files
        return b"", (0, 0)
    if kind != "full" and min(image.size) > SHORT_SIDE:
        scale = SHORT_SIDE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    shape = image.height, image.width
    if kind != "jpeg256":
        return image.tobytes(), shape
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue(), shape


def sorted_rows(rows: list[list], split: str) -> list[Row]:
    """In ImageFolder's order. Raises UserError where an image is there twice."""
    found: list[Row] = sorted((tuple(row) for row in rows), key=lambda row: (row[0], *os.path.split(row[1])))
    for before, row in itertools.pairwise(found):
        if before[:2] == row[:2]:
            raise UserError(f"{row[1]!r} of class {row[0]} is there twice in {split}; remove the wrong one")
    return found


def names_and_sizes(rows: list[Row]) -> dict[str, list[tuple[str, int]]]:
    """For fingerprint_of."""
    found: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(row[1:3])
    return found


def write_tables(file: BinaryIO, metadata: dict[str, str], rows: list[Row]) -> None:
    """Behind the images; the header comes last."""
    classes = sorted({row[0] for row in rows})
    metadata = {"what": FILE_KIND, "version": VERSION} | metadata | {"classes": json.dumps(classes)}
    number_of = {name: number for number, name in enumerate(classes)}
    tables: Arrays = {
        "starts": numpy.array([row[3] for row in rows], "<i8"),
        "ends": numpy.array([row[4] for row in rows], "<i8"),
        "shapes": numpy.array([row[5:7] for row in rows], "<i4"),
        "targets": numpy.array([number_of[row[0]] for row in rows], "<i4"),
        "checksums": numpy.array([row[7] for row in rows], "<u4"),
    }
    num_bytes = file.seek(0, os.SEEK_END) - HEADER_BYTES
    padding = -num_bytes % ALIGNED
    arrays: ArrayShapes = {"images": (numpy.dtype("u1"), (num_bytes + padding,))}
    arrays |= {name: (table.dtype, table.shape) for name, table in tables.items()}
    file.write(bytes(padding))
    for table in tables.values():
        file.write(table.tobytes())
    file.seek(0)
    file.write(file_header(metadata, arrays, HEADER_BYTES))
