"""An image as a packed file stores it. Pillow decodes, whatever else is installed: the file does not depend on who
wrote it."""

import io

from PIL import Image

from benchmarks.common.errors import UserError
from benchmarks.common.images import open_image

SHORT_SIDE, QUALITY = 256, 90


def encode(content: bytes, kind: str, name: str) -> tuple[bytes, tuple[int, int]]:
    """What is stored of an image's file, and its height and width; nothing of an image that cannot be decoded.

    name: for the UserError where memory is short: the image itself may be good.
    """
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
