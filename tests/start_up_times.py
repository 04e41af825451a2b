"""How long a suite takes to name the images of ImageNet before its first run: the first time, and later.

    PYTHONPATH=. .venv/bin/python tests/start_up_times.py

Makes a folder with as many images as ImageNet has in TMPDIR, of hard links to two files of 110 KB for each class. Takes
the fingerprint and the contents, first without a cache and then with what that left there. The files are in memory: a
disk adds its own time. Writes results/measured/start_up.csv. It takes some minutes and 1 GB.
"""

import os
import random
import tempfile
import time
from pathlib import Path

from benchmarks.common.data.contents import cached_contents
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import FIRST_BYTES
from scripts.studies.measured_csv import MEASURED_FOLDER, add_rows

NUM_CLASSES, NUM_TRAIN_IMAGES, NUM_VAL_IMAGES = 1000, 1_281_167, 50_000
IMAGE_BYTES = 110_000  # about the mean of ImageNet
SETTLED_S = 3  # what was written just now is not kept in the cache


def make_images(folder: Path, num_classes: int, num_train: int, num_val: int, num_bytes: int) -> None:
    """folder/train/<class>/ and folder/val/<class>/ with so many images in all; those of a class are one file."""
    for part, num_images in (("train", num_train), ("val", num_val)):
        for number in range(num_classes):
            of_class = folder / part / f"n{number:08}"
            of_class.mkdir(parents=True)
            first = of_class / "0.JPEG"
            content = FIRST_BYTES["JPEG"] + random.Random(f"{part} {number}").randbytes(num_bytes)
            first.write_bytes(content[:num_bytes])
            for image in range(1, num_images // num_classes + (number < num_images % num_classes)):
                os.link(first, of_class / f"{image}.JPEG")


def start_up_row(data: Path, when: str) -> dict[str, str | int | float]:
    """A row of start_up.csv: the seconds that the two names of the images take now."""
    began = time.perf_counter()
    num_images = sum(map(int, cached_fingerprint(data).split("-")[1:3]))
    named = time.perf_counter()
    cached_contents(data)
    seconds = {"fingerprint_s": named - began, "contents_s": time.perf_counter() - named}
    return {"when": when, "num_images": num_images} | seconds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="start-up-") as temporary:
        os.environ["XDG_CACHE_HOME"] = f"{temporary}/cache"
        data = Path(temporary, "images")
        make_images(data, NUM_CLASSES, NUM_TRAIN_IMAGES, NUM_VAL_IMAGES, IMAGE_BYTES)
        time.sleep(SETTLED_S)
        rows = [start_up_row(data, when) for when in ("first", "later")]
    print(*rows, sep="\n")
    add_rows(MEASURED_FOLDER / "start_up.csv", rows, replace=True)


if __name__ == "__main__":
    main()
