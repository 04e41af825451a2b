"""Images that decoders read in ways of their own, or not at all: made here, as bytes of a file.

from hard_images import HARD, encoded, photograph, write_hard
"""

import io
import struct
from pathlib import Path

import numpy
from PIL import Image


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def photograph(width: int, height: int) -> Image.Image:
    """Smooth colours with fine noise on them: hard to upsample alike by chance."""
    rng = numpy.random.default_rng(width * 10_000 + height)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=numpy.uint8))
    smooth = numpy.asarray(small.resize((width, height), Image.BICUBIC)).astype(int)
    return Image.fromarray((smooth + rng.integers(-30, 31, smooth.shape)).clip(0, 255).astype(numpy.uint8))


def inverted_cmyk() -> bytes:
    """What Adobe writes: ink is stored inverted, with black."""
    planes = [photograph(301, 203).getchannel(0).rotate(90 * turn) for turn in range(4)]
    return encoded(Image.merge("CMYK", planes))


def turned() -> bytes:
    exif = Image.Exif()
    exif[274] = 6
    return encoded(photograph(320, 213), exif=exif)


def with_sampling(of_luma: int, **options) -> bytes:
    """A JPEG whose header is changed to sample brightness and colours otherwise: as many blocks, in another place.

    Pillow writes 2 x 1 (4:2:2) and 2 x 2 (4:2:0) only. 4:4:0 is 1 x 2: half as wide, twice as high; 4:1:1 is 4 x 1.
    """
    width, height = (256, 192) if of_luma == 0x12 else (192, 256)
    content = bytearray(encoded(photograph(width, height), **options))
    frame = content.index(b"\xff\xc0")  # SOF0: length, precision, height, width, components, and each one's sampling
    factor = 2 if of_luma == 0x12 else 0.5
    content[frame + 5 : frame + 9] = struct.pack(">HH", int(height * factor), int(width / factor))
    content[frame + 11] = of_luma
    return bytes(content)


def ycck() -> bytes:
    """CMYK of which three channels are coded as brightness and colours, as Photoshop writes it."""
    content = bytearray(inverted_cmyk())
    adobe = content.index(b"Adobe")
    content[adobe + 11] = 2  # the colour transform, which Pillow leaves at 0
    return bytes(content)


HARD = {
    "4:2:0": lambda: encoded(photograph(500, 375), subsampling=2),
    "4:2:2": lambda: encoded(photograph(500, 375), subsampling=1),
    "4:4:4": lambda: encoded(photograph(500, 375), subsampling=0),
    "4:4:0": lambda: with_sampling(0x12, subsampling=1),
    "4:1:1": lambda: with_sampling(0x41, subsampling=2),
    "RGB-coded": lambda: encoded(photograph(301, 203), keep_rgb=True),
    "progressive": lambda: encoded(photograph(500, 375), progressive=True),
    "restart markers": lambda: encoded(photograph(333, 251), restart_marker_rows=1),
    "odd sizes": lambda: encoded(photograph(333, 217), subsampling=2),
    "portrait": lambda: encoded(photograph(281, 500)),
    "16 pixels": lambda: encoded(photograph(16, 16)),
    "1 pixel": lambda: encoded(photograph(1, 1)),
    "a strip": lambda: encoded(photograph(900, 20)),
    "8000 pixels": lambda: encoded(photograph(8000, 600)),
    "grey": lambda: encoded(photograph(301, 203).convert("L")),
    "CMYK": inverted_cmyk,
    "YCCK": ycck,
    "two pictures": lambda: encoded(
        photograph(301, 203), "MPO", save_all=True, append_images=[photograph(301, 203).rotate(90)]
    ),
    "EXIF orientation": turned,
    "a PNG named .JPEG": lambda: encoded(photograph(301, 203), "PNG"),
    "bytes after the end": lambda: encoded(photograph(301, 203)) + b"\0\0",
}
BY_PILLOW = {"CMYK", "YCCK", "a PNG named .JPEG", "bytes after the end"}


def write_hard(data: Path) -> Path:
    """train/ and val/ with each of HARD once, in two classes."""
    for number, (name, content) in enumerate(HARD.items()):
        for part in ("train", "val"):
            folder = data / part / f"class {number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace(' ', '-')}.JPEG").write_bytes(content())
    return data
