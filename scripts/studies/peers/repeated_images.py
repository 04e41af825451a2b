"""A folder of images that is long enough for all steps of a loop, from a small one: its classes, several times over.

    with long_enough("data/imagenet-mini", num_images=31_000) as folder: ...      # folder/train/<class>/<lap>/

The suite deals a small folder in laps, as one long epoch. Loops of others begin an epoch anew at the folder's end, with
new loader workers, and one whose images make no whole batch never comes to a step.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.setup.check_data import check_image_folder


@contextlib.contextmanager
def long_enough(data: str, num_images: int) -> Iterator[str]:
    """`data`, or where its train/ has fewer than num_images, a folder of links to its classes, as often as it takes.

    Raises as check_image_folder does.
    """
    num_laps = math.ceil(num_images / check_image_folder(data).num_train_images)
    if num_laps == 1:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="laps-") as scratch:
        for kind in sorted(path for path in Path(data, "train").iterdir() if path.is_dir()):
            laps = Path(scratch, "train", kind.name)
            laps.mkdir(parents=True)
            for lap in range(num_laps):
                (laps / str(lap)).symlink_to(kind.resolve())
        yield scratch
