"""A folder with enough images for all steps of a loop, from a small one: its classes, repeated.

    with repeated_images("data/imagenet-mini", num_images=31_000) as folder: ...  # folder/train/<class>/<repetition>/

The suite repeats the images of a small folder within one long epoch. Other loops start a new epoch at the end of the
folder, with new loader workers; and a loop with fewer images than a batch never makes a step.
"""

import contextlib
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.setup.check_data import check_image_folder


@contextlib.contextmanager
def repeated_images(data: str, num_images: int) -> Iterator[str]:
    """`data`; or where its train/ has fewer than num_images, a folder with links to its classes, as many as needed.

    Raises as check_image_folder does.
    """
    num_repetitions = math.ceil(num_images / check_image_folder(data).num_train_images)
    if num_repetitions == 1:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="repeated-images-") as scratch:
        for source in sorted(path for path in Path(data, "train").iterdir() if path.is_dir()):
            class_folder = Path(scratch, "train", source.name)
            class_folder.mkdir(parents=True)
            for repetition in range(num_repetitions):
                (class_folder / str(repetition)).symlink_to(source.resolve())
        yield scratch
