"""Check that a folder has ImageNet's layout, train/<class>/<image> and val/<class>/<image>, before a run.

    python -m scripts.data.check --data PATH

Prints the counts and exits 0, or prints one line on stderr, with what is wrong and what to do, and exits 2.
It counts what torchvision's ImageFolder would read, by names; a file that does not decode is the loader's to report.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy
import tyro

from benchmarks.common.config import PACK_KINDS
from benchmarks.common.errors import UserError
from benchmarks.common.listing import IMG_EXTENSIONS, list_images
from scripts.options.data_options import CheckDataOptions
from scripts.shared.commands import bench_command
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.programs import run_main_and_exit

EXPECTED_LAYOUT = (
    "expected train/<class>/*.JPEG and val/<class>/*.JPEG; "
    "./bench data import FROM TO makes them of Parquet files, of tars or of a flat val/"
)


@dataclass(frozen=True)
class Counts:
    """What a data set holds."""

    num_classes: int
    num_train_images: int
    num_val_images: int


def format_names(names: Iterable[str]) -> str:
    """Three names for a message, quoted and escaped."""
    names = sorted(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(repr(name) for name in names[:3]) + rest


def name_packs(data: str) -> str:
    """How to train on the packed files of a folder that has no images; '' where it has none."""
    for kind in PACK_KINDS:
        if Path(data, "packed", kind, "train.safetensors").is_file():
            command = bench_command("run single", data=data)
            return f"it has packed files, for a run of {command} -- --loader packed --pack {kind}"
    return ""


def count_part(data: str, part: str) -> dict[str, int]:
    """The number of images in each class of `part`, "train" or "val". Raises UserError, and what list_images raises."""
    folder = os.path.join(data, part)
    if not os.path.isdir(folder):
        raise UserError(f"{data!r}: {part}/ is not there; {name_packs(data) or EXPECTED_LAYOUT}")
    with os.scandir(folder) as iterator:
        entries = list(iterator)
    if not any(entry.is_dir() for entry in entries):
        num_loose = sum(entry.name.lower().endswith(IMG_EXTENSIONS) for entry in entries)
        loose = f", only {num_loose} loose images: sort them into one folder a class" if num_loose else ""
        raise UserError(f"{data!r}: {part}/ has no class folders{loose}; {EXPECTED_LAYOUT}")
    images = list_images(Path(folder))
    numbers = numpy.bincount(images.targets(), minlength=len(images.classes)).tolist()
    counts = dict(zip(images.classes, numbers, strict=True))
    if empty := [name for name, count in counts.items() if count == 0]:
        raise UserError(
            f"{data!r}: {part}/ has class folders without an image: {format_names(empty)}; "
            f"fill or remove them (images end in {', '.join(IMG_EXTENSIONS)})"
        )
    return counts


def check_image_folder(path: str | os.PathLike) -> Counts:
    """Count a data set's classes and images; files directly in train/ or val/ are ignored.

    Raises UserError where train/ or val/ is missing, has no class folders or an empty one, or cannot be read, and where
    val has classes that train lacks (the opposite is fine).
    """
    data = os.fspath(path)
    if not os.path.isdir(data):
        what = "is not a folder" if os.path.lexists(data) else "does not exist"
        raise UserError(
            f"{data!r} {what}; set {option_as_typed('DATA')} to a folder with train/<class>/ and val/<class>/"
        )
    try:
        train, val = count_part(data, "train"), count_part(data, "val")
    except OSError as error:
        raise UserError(f"cannot read {error.filename!r}: {error.strerror}; fix its permissions or mount") from None
    if unknown := val.keys() - train.keys():
        raise UserError(
            f"{data!r}: val/ has classes that train/ lacks: {format_names(unknown)}; "
            "remove them from val/ or add them to train/"
        )
    return Counts(len(train), num_train_images=sum(train.values()), num_val_images=sum(val.values()))


def main(options: CheckDataOptions) -> int:
    counts = check_image_folder(options.data)
    print(
        f"{options.data!r}: {counts.num_classes} classes, {counts.num_train_images} train images, "
        f"{counts.num_val_images} val images"
    )
    return 0


if __name__ == "__main__":
    prog = "python -m scripts.data.check"
    run_main_and_exit(lambda: main(tyro.cli(CheckDataOptions, description=__doc__, prog=prog)))
