"""Images that decoders read in ways of their own, or must refuse: made here, as bytes of a file.

from hard_images import BAD, HARD, encoded, photograph, write_hard
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


def with_size(width: int, height: int) -> bytes:
    """A JPEG whose header says another size than its pixels have."""
    changed = bytearray(encoded(photograph(320, 200)))
    frame = changed.index(b"\xff\xc0")
    changed[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(changed)


def with_height_at_the_end() -> bytes:
    """A JPEG as some scanners write it: height 0 in the header, and the height after the pixels (DNL)."""
    return with_size(320, 0)[:-2] + b"\xff\xdc\x00\x04" + struct.pack(">H", 200) + b"\xff\xd9"


def png_without_pixels() -> bytes:
    whole = encoded(photograph(64, 64), "PNG")
    return whole[: whole.index(b"IDAT") - 4] + whole[whole.index(b"IEND") - 4 :]


NEITHER = "its first bytes are of neither a JPEG nor a PNG"
UNREADABLE = "its header is not readable"
# What no decoder reads, and a pattern of the reason. Other formats are never handed to a decoder: for an EPS Pillow
# would start Ghostscript, and some JPEG 2000 stop nvimgcodec by SIGFPE.
BAD = {
    "empty": (lambda: b"", NEITHER),
    "text": (lambda: b"not an image", NEITHER),
    "its first bytes only": (lambda: b"\xff\xd8\xff", UNREADABLE),
    "cut off": (lambda: (whole := encoded(photograph(400, 300)))[: len(whole) * 3 // 4], ""),
    "an EPS": (lambda: encoded(photograph(64, 64), "EPS"), NEITHER),
    "a JPEG 2000": (lambda: encoded(photograph(64, 64), "JPEG2000"), NEITHER),
    "a WebP": (lambda: encoded(photograph(64, 64), "WEBP"), NEITHER),
    "a TIFF": (lambda: encoded(photograph(64, 64), "TIFF"), NEITHER),
    "a height of 0": (lambda: with_size(320, 0), f"its header says 320 x 0 pixels|{UNREADABLE}"),
    "its height at the end": (with_height_at_the_end, f"its header says 320 x 0 pixels|{UNREADABLE}"),
    "a damaged size": (lambda: with_size(65_500, 65_500), "exceeds limit of"),
    "a PNG without pixels": (png_without_pixels, ""),
}


def write_hard(data: Path) -> Path:
    """train/ and val/ with each of HARD once, in two classes."""
    for number, (name, content) in enumerate(HARD.items()):
        for part in ("train", "val"):
            folder = data / part / f"class {number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace(' ', '-')}.JPEG").write_bytes(content())
    return data
