"""Check that a folder has ImageNet's layout, train/<class>/<image> and val/<class>/<image>, by names and sizes.

./bench data check --data PATH
"""

import os
from pathlib import Path
from typing import NamedTuple

import numpy

from benchmarks.common.errors import UserError
from benchmarks.common.listing import IMG_EXTENSIONS, ImageListing, format_names, list_images
from scripts.data.options import CheckDataOptions

EXPECTED_LAYOUT = (
    "expected train/<class>/*.JPEG and val/<class>/*.JPEG; "
    "./bench data import FROM TO makes them of Parquet files, of tars or of a flat val/"
)


class Counts(NamedTuple):
    num_classes: int
    num_train_images: int
    num_val_images: int

    def __str__(self) -> str:
        return f"{self.num_classes} classes, {self.num_train_images} train images, {self.num_val_images} val images"


def list_part(data: str, part: str) -> ImageListing:
    folder = Path(data, part)
    if not folder.is_dir():
        raise UserError(f"{data!r}: {part}/ is not there; {EXPECTED_LAYOUT}")
    try:
        images = list_images(folder)
    except FileNotFoundError:
        raise UserError(f"{data!r}: {part}/ has no class folders; {EXPECTED_LAYOUT}") from None
    numbers = numpy.bincount(images.targets(), minlength=len(images.classes))
    if empty := [name for name, number in zip(images.classes, numbers, strict=True) if not number]:
        raise UserError(
            f"{data!r}: {part}/ has class folders without an image: {format_names(empty)}; "
            f"fill or remove them (images end in {', '.join(IMG_EXTENSIONS)})"
        )
    return images


def check_image_folder(path: str | os.PathLike) -> Counts:
    """Raises UserError for what training would not read."""
    data = os.fspath(path)
    if not os.path.isdir(data):
        raise UserError(
            f"{data!r} does not exist, or is no folder; set --data to one with train/<class>/ and val/<class>/"
        )
    try:
        train, val = list_part(data, "train"), list_part(data, "val")
    except OSError as error:
        raise UserError(f"cannot read {error.filename!r}: {error.strerror}; fix its permissions or mount") from None
    if unknown := {*val.classes} - {*train.classes}:
        raise UserError(
            f"{data!r}: val/ has classes that train/ lacks: {format_names(unknown)}; "
            "remove them from val/ or add them to train/"
        )
    return Counts(len(train.classes), len(train), len(val))


def refuse_empty_files(folder: Path) -> None:
    images = list_images(folder)
    if empty := [images.path(int(number)) for number in numpy.flatnonzero(images.sizes == 0)]:
        raise UserError(f"{len(empty):,} images have no bytes: {format_names(empty)}; remove them")


def main(options: CheckDataOptions) -> int:
    counts = check_image_folder(options.data)
    for part in ("train", "val"):
        refuse_empty_files(Path(options.data, part))
    print(f"{options.data!r}: {counts}")
    return 0
