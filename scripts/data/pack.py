"""Pack a folder's images into one file for train/ and one for val/, which training maps instead of decoding JPEGs.

    ./bench data pack --data data/imagenet-mini --pack full

full holds every pixel (ImageNet: about 700 GB); 256 the images shrunk to 256 pixels on the shorter side (350 GB);
jpeg256 those as JPEGs of quality 90 (31 GB). Only full trains on the same pixels as the folder. A packed file of these
images is kept.
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
    ImageListing,
    file_header,
    fingerprint,
    format_names,
    list_images,
)
from benchmarks.common.machine import num_cores
from benchmarks.common.packed import FILE_KIND, SPLITS, VERSION, open_pack, pack_path
from scripts.data.check import check_image_folder
from scripts.data.options import PackOptions
from scripts.data.write_shards import MAX_THREADS, disk_errors, make_workshop
from scripts.shared.commands import bench_command

NUM_TOGETHER = 256  # images in memory
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
        todo = [split for split in SPLITS if not is_packed(config, split, of_images)]
        if not todo:
            return
        with make_workshop(folder / ".packing") as workshop:
            for split in todo:
                unfinished, metadata = workshop / split, {"kind": config.pack, "part": split, "fingerprint": of_images}
                pack_images(list_images(root / split), unfinished, metadata)
                os.replace(unfinished, pack_path(config, split))
    print(f"fingerprint {of_images}")
    print(f"train on it: {bench_command('run single', data=options.data)} -- --loader packed --pack {config.pack}")


def is_packed(config: Config, split: str, of_images: str) -> bool:
    path = pack_path(config, split)
    if not path.exists():
        return False
    try:
        print(f"{path} is there: {len(open_pack(config, split, of_images))} images")
        return True
    except UserError as error:
        print(error)
        return False


def pack_images(listing: ImageListing, path: Path, metadata: dict[str, str]) -> None:
    rows: list[Row] = []
    begin, num_images = 0, len(listing)
    with (
        open(path, "wb") as file,
        ThreadPoolExecutor(min(MAX_THREADS, num_cores())) as pool,
        tqdm(desc=f"packing {path.name}", total=num_images, disable=None) as bar,
    ):
        file.seek(HEADER_BYTES)
        for first in range(0, num_images, NUM_TOGETHER):
            paths = map(listing.path, range(first, min(first + NUM_TOGETHER, num_images)))
            for stored, height, width in pool.map(functools.partial(encode, kind=metadata["kind"]), paths):
                file.write(stored)
                rows.append([begin, begin + len(stored), height, width, zlib.crc32(stored)])
                begin += len(stored)
                bar.update()
        write_tables(file, metadata, listing, rows)
    size = path.stat().st_size
    print(f"{path.name}: {num_images:,} images of {len(listing.classes):,} classes, {size / 1e9:.3g} GB")
    if bad := [listing.path(number) for number, row in enumerate(rows) if row[0] == row[1]]:
        print(f"  warning: {len(bad)} not readable: {format_names(bad)}; a run that meets one of them says so")


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
