"""Images as a packed file stores them, made in chunks by all cores, a little ahead of what is written."""

import collections
import dataclasses
import io
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image
from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.images import open_image
from benchmarks.common.listing import ImageListing

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_CHUNK_IMAGES, MAX_CHUNK_BYTES = 128, 1 << 26  # that are written, and lost by a kill, together
SHORT_SIDE, QUALITY = 256, 90


@dataclasses.dataclass
class Chunk:
    """What the tables say of some images, and the images as they are stored, until they are written."""

    sizes: list[int] = dataclasses.field(default_factory=list)
    shapes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    checksums: list[int] = dataclasses.field(default_factory=list)
    stored: list[bytes] = dataclasses.field(default_factory=list)

    def add(self, stored: bytes, shape: tuple[int, int], checksum: int) -> None:
        self.stored.append(stored)
        self.sizes.append(len(stored))
        self.shapes.append(shape)
        self.checksums.append(checksum)

    def is_full(self) -> bool:
        return len(self.sizes) >= MAX_CHUNK_IMAGES or sum(self.sizes) >= MAX_CHUNK_BYTES


def encode_chunks(listing: ImageListing, kind: str, num_done: int) -> Iterator[Chunk]:
    """The images from number num_done on, in order, made by all cores a little ahead of what is written."""
    threads = len(os.sched_getaffinity(0))

    def make(index: int) -> tuple[bytes, tuple[int, int], int]:
        stored, shape = encode_image(listing.path(index), kind)
        return stored, shape, zlib.crc32(stored)

    bar = tqdm(desc=f"packing {listing.folder.name}", total=len(listing), unit="image", disable=None, leave=False)
    with ThreadPoolExecutor(threads) as pool, bar:
        bar.update(num_done)
        chunk = Chunk()
        for image in map_in_order(pool, make, range(num_done, len(listing)), 2 * threads):
            chunk.add(*image)
            bar.update()
            if chunk.is_full():
                yield chunk
                chunk = Chunk()
        if chunk.sizes:
            yield chunk


def map_in_order(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item], prefetch: int
) -> Iterator[Result]:
    """work(item) of each item in order. As many as `prefetch` are begun before their results are needed."""
    waiting: collections.deque[Future[Result]] = collections.deque()
    for item in items:
        waiting.append(pool.submit(work, item))
        if len(waiting) > prefetch:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def encode_image(path: str, kind: str) -> tuple[bytes, tuple[int, int]]:
    """An image as it is stored, and its height and width; nothing of an image that cannot be decoded.

    Pillow decodes, whatever else is installed, so that a packed file does not depend on who wrote it. Raises OSError
    for a fault of the disk or a permission, and UserError where memory is short: the image itself may be good.
    """
    return encode_content(Path(path).read_bytes(), kind, path)


def encode_content(content: bytes, kind: str, name: str) -> tuple[bytes, tuple[int, int]]:
    """As encode_image, of the bytes of an image's file. name: for the message where memory is short."""
    try:
        return _encode(content, kind)
    except MemoryError:
        raise UserError(f"no memory for {name!r}; free some, and the same command goes on") from None
    except Exception:  # Pillow raises errors of many types for damaged files
        return b"", (0, 0)


def _encode(content: bytes, kind: str) -> tuple[bytes, tuple[int, int]]:
    with open_image(content) as opened:
        image = opened.convert("RGB")
    if kind != "full" and min(image.size) > SHORT_SIDE:
        scale = SHORT_SIDE / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    shape = image.height, image.width
    if kind != "jpeg256":
        return image.tobytes(), shape
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue(), shape
