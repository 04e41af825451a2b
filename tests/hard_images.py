"""Images that decoders read in ways of their own, or must refuse, as bytes of a file."""

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
    """Hard to upsample alike by chance."""
    rng = numpy.random.default_rng(width * 10_000 + height)
    small = Image.fromarray(rng.integers(0, 256, (5, 7, 3), dtype=numpy.uint8))
    smooth = numpy.asarray(small.resize((width, height), Image.BICUBIC)).astype(int)
    return Image.fromarray((smooth + rng.integers(-30, 31, smooth.shape)).clip(0, 255).astype(numpy.uint8))


def inverted_cmyk() -> bytes:
    """What Adobe writes."""
    planes = [photograph(301, 203).getchannel(0).rotate(90 * turn) for turn in range(4)]
    return encoded(Image.merge("CMYK", planes))


def turned() -> bytes:
    exif = Image.Exif()
    exif[274] = 6
    return encoded(photograph(320, 213), exif=exif)


def sampled_1_x_2() -> bytes:
    """4:4:0: what Pillow writes as 4:2:2, with another header."""
    width, height = 256, 192
    content = bytearray(encoded(photograph(width, height), subsampling=1))
    frame = content.index(b"\xff\xc0")  # SOF0: length, precision, height, width, components, and each one's sampling
    content[frame + 5 : frame + 9] = struct.pack(">HH", 2 * height, width // 2)
    content[frame + 11] = 0x12
    return bytes(content)


def ycck() -> bytes:
    """As Photoshop writes it."""
    content = bytearray(inverted_cmyk())
    adobe = content.index(b"Adobe")
    content[adobe + 11] = 2  # the colour transform, which Pillow leaves at 0
    return bytes(content)


HARD = {
    "4:2:0": lambda: encoded(photograph(500, 375), subsampling=2),
    "4:4:0": sampled_1_x_2,
    "RGB-coded": lambda: encoded(photograph(301, 203), keep_rgb=True),
    "progressive": lambda: encoded(photograph(500, 375), progressive=True),
    "1 pixel": lambda: encoded(photograph(1, 1)),
    "a strip": lambda: encoded(photograph(900, 20)),
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


def with_size(width: int, height: int) -> bytes:
    """A JPEG whose header says another size than its pixels have."""
    changed = bytearray(encoded(photograph(320, 200)))
    frame = changed.index(b"\xff\xc0")
    changed[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(changed)


def png_without_pixels() -> bytes:
    whole = encoded(photograph(64, 64), "PNG")
    return whole[: whole.index(b"IDAT") - 4] + whole[whole.index(b"IEND") - 4 :]


# What no decoder reads. For an EPS Pillow would start Ghostscript.
BAD = {
    "empty": lambda: b"",
    "its first bytes only": lambda: b"\xff\xd8\xff",
    "cut off": lambda: (whole := encoded(photograph(400, 300)))[: len(whole) * 3 // 4],
    "an EPS": lambda: encoded(photograph(64, 64), "EPS"),
    "a height of 0": lambda: with_size(320, 0),
    "a damaged size": lambda: with_size(65_500, 65_500),
    "a PNG without pixels": png_without_pixels,
}


def write_hard(data: Path) -> Path:
    for number, (name, content) in enumerate(HARD.items()):
        for part in ("train", "val"):
            folder = data / part / f"class {number % 2}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name.replace(' ', '-')}.JPEG").write_bytes(content())
    return data
