"""What the loops beside the suite get: their settings, and a reader of files. Nothing of the suite is in it."""

from typing import NamedTuple

from PIL import Image


class LoopSettings(NamedTuple):
    """Of a training loop."""

    folder: str
    """Folder with a folder of images for each class."""
    arch: str
    image_size: int
    global_batch: int
    workers: int
    """Loader processes of a rank."""
    lr: float
    momentum: float
    weight_decay: float


def read_rgb(path: str) -> Image.Image:
    """torchvision's own reader of a file, but of JPEGs and PNGs alone: for an EPS Pillow starts Ghostscript."""
    with open(path, "rb") as file:
        return Image.open(file, formats=("JPEG", "PNG")).convert("RGB")
