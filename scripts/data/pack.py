"""Pack a folder's images into one file for train/ and one for val/, which training maps instead of decoding JPEGs.

    ./bench data pack --data data/imagenet-mini --pack full

full holds every pixel (ImageNet: about 700 GB); 256 the images shrunk to 256 pixels on the shorter side (350 GB);
jpeg256 those as JPEGs of quality 90 (31 GB). Only full trains on the same pixels as the folder. After a kill the same
command goes on; a packed file of these images is kept.
"""

import functools
import io
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy
from PIL import Image
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import open_image
from benchmarks.common.listing import (
    ALIGNED,
    Arrays,
    ArrayShapes,
    DamagedFile,
    ImageListing,
    file_header,
    fingerprint,
    format_names,
    list_images,
)
from benchmarks.common.machine import num_cores
from benchmarks.common.packed import FILE_KIND, SPLITS, VERSION, PackedSource, pack_path
from scripts.data.check import check_image_folder
from scripts.data.options import PackOptions
from scripts.data.write_shards import MAX_THREADS, disk_errors, open_workshop, read_journal, write_journal
from scripts.shared.commands import bench_command

WORKSHOP = ".packing"  # beside the packed files
NUM_TOGETHER = 256  # images that a kill loses
HEADER_BYTES = 1 << 20  # its length is known at the end: 21,841 classes take 0.6 MB
SHORT_SIDE, QUALITY = 256, 90  # pixels; of JPEGs
Row = list[int]
"""Of an image: first byte and the one after the last, height, width, CRC-32."""


def main(options: PackOptions) -> None:
    config, root = Config(data=options.data, loader="packed", pack=options.pack), Path(options.data)
    check_image_folder(root)
    folder = pack_path(config, "train").parent
    with disk_errors(root, folder, "mend it, or give another folder by PACKED, and run ./bench data pack again"):
        of_images = fingerprint(root)
        todo = [split for split in SPLITS if not is_complete(pack_path(config, split), of_images)]
        if not todo:
            return
        with open_workshop(folder / WORKSHOP) as workshop:
            for split in todo:
                metadata = {"kind": config.pack, "part": split, "fingerprint": of_images}
                unfinished = pack_images(list_images(root / split), workshop / split, metadata)
                os.replace(unfinished, pack_path(config, split))
    print(f"fingerprint {of_images}")
    print(f"train on it: {bench_command('run single', data=options.data)} -- --loader packed --pack {config.pack}")


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


def pack_images(listing: ImageListing, path: Path, metadata: dict[str, str]) -> Path:
    """All of them, after those that the journal beside `path` has, in one file, which is returned."""
    unfinished, journal = path.with_suffix(".safetensors"), path.with_suffix(".journal")
    begun, written = read_journal(journal)
    rows: list[Row] = [row for lines in written for row in lines] if begun == metadata else []
    write_journal(journal, [metadata, *(written if rows else [])])
    unfinished.touch()
    if rows:
        print(f"going on after {len(rows):,} images")
    with (
        open(unfinished, "r+b") as file,
        open(journal, "a") as notes,
        ThreadPoolExecutor(min(MAX_THREADS, num_cores())) as pool,
        tqdm(desc=f"packing {path.name}", total=len(listing), initial=len(rows), disable=None) as bar,
    ):
        file.truncate(HEADER_BYTES + (rows[-1][1] if rows else 0))
        file.seek(0, os.SEEK_END)
        while len(rows) < len(listing):
            paths = [listing.path(number) for number in range(len(rows), min(len(rows) + NUM_TOGETHER, len(listing)))]
            packed: list[Row] = []
            for stored, height, width in pool.map(functools.partial(encode, kind=metadata["kind"]), paths):
                begin = file.tell() - HEADER_BYTES
                file.write(stored)
                packed.append([begin, begin + len(stored), height, width, zlib.crc32(stored)])
            file.flush()
            notes.write(json.dumps(packed) + "\n")
            notes.flush()
            rows += packed
            bar.update(len(packed))
        write_tables(file, metadata, listing, rows)
    size = unfinished.stat().st_size
    print(f"{path.name}: {len(rows):,} images of {len(listing.classes):,} classes, {size / 1e9:.3g} GB")
    if bad := [listing.path(number) for number, row in enumerate(rows) if row[0] == row[1]]:
        print(f"  warning: {len(bad)} not readable: {format_names(bad)}; a run that meets one of them says so")
    return unfinished


def encode(path: str, kind: str) -> tuple[bytes, int, int]:
    """What is stored, and its height and width; nothing of an image that Pillow cannot decode."""
    content = Path(path).read_bytes()
    try:
        with open_image(content) as opened:
            image = opened.convert("RGB")
    except MemoryError:
        raise  # the image itself may be good
    except Exception:  # Pillow raises errors of many types for damaged files
        return b"", 0, 0
    if kind != "full" and min(image.size) > SHORT_SIDE:
        scale = SHORT_SIDE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    if kind != "jpeg256":
        return image.tobytes(), image.height, image.width
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue(), image.height, image.width


def write_tables(file: BinaryIO, metadata: dict[str, str], listing: ImageListing, rows: list[Row]) -> None:
    """Behind the images; the header comes last."""
    metadata = {"what": FILE_KIND, "version": VERSION, **metadata, "classes": json.dumps(listing.classes)}
    columns = numpy.array(rows, "<i8")
    tables: Arrays = {
        "starts": columns[:, 0],
        "ends": columns[:, 1],
        "shapes": columns[:, 2:4].astype("<i4"),
        "targets": listing.targets().astype("<i4"),
        "checksums": columns[:, 4].astype("<u4"),
    }
    num_bytes = rows[-1][1]
    padding = -num_bytes % ALIGNED
    arrays: ArrayShapes = {"images": (numpy.dtype("u1"), (num_bytes + padding,))}
    arrays |= {name: (table.dtype, table.shape) for name, table in tables.items()}
    file.write(bytes(padding))
    for table in tables.values():
        file.write(table.tobytes())
    file.seek(0)
    file.write(file_header(metadata, arrays, HEADER_BYTES))
