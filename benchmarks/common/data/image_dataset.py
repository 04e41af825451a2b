"""Images by (epoch, position, index), and batches of them, from a folder of files or from a packed file.

The augmentation of an image is drawn from (seed, epoch, position), so that pixels depend on neither the ranks, nor
the loader's workers, nor where a resumed run started.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy
import torch

from benchmarks.common.data.crops import Choose, centre_view, finish, most_pixels, random_numbers, random_view
from benchmarks.common.data.decode import Reader, what_failed
from benchmarks.common.data.listing import Listing, list_images
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import LARGEST_IMAGE_BYTES, read_regular

NEIGHBOURS_TRIED = 100  # that many unreadable files in a row are no accident

Key = tuple[int, int, int]
"""Epoch, position in the epoch's order, index of the image."""
Told = tuple[list[int], list[str], int]
"""Of images that were read: their targets, the problems of the unreadable, how many were left to Pillow."""


class Source(Protocol):
    """Where images come from. `content` is what the reader takes, `name` is for messages."""

    classes: list[str]

    def __len__(self) -> int: ...
    def content(self, index: int): ...
    def name(self, index: int) -> str: ...
    def target(self, index: int) -> int: ...


class Files:
    """The Source that is a folder. Raises UserError where it cannot be read or holds no image."""

    def __init__(self, folder: Path):
        try:
            self.listing: Listing = list_images(folder)
        except OSError as error:
            raise UserError(f"cannot read {folder}: {error}; DATA must hold train/ and val/") from None
        if not len(self.listing):
            raise UserError(f"{folder} holds no class folder with images; expected {folder}/<class>/*.JPEG")
        self.classes, self.target, self.name = self.listing.classes, self.listing.target, self.listing.path

    def __len__(self) -> int:
        return len(self.listing)

    def content(self, index: int) -> bytes:
        return read_regular(self.listing.path(index), LARGEST_IMAGE_BYTES)


class Photographs:
    """The images of a Source, cropped to size x size.

    With `fill_gaps`, the next readable image takes the place of one that is not, so that training batches stay whole.
    open_reader is called in the process that reads, at its first image.
    classes: what numbers the targets, those of train/: a val/ that lacks some must not shift the others.
    """

    def __init__(self, source: Source, open_reader: Callable[[], Reader], size: int, seed: int, classes: list[str]):
        self.source, self.open_reader, self.size, self.seed = source, open_reader, size, seed
        self.augment = self.fill_gaps = False
        self.classes = classes
        number_of = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in source.classes if name not in number_of]:
            raise UserError(f"val has classes that train/ lacks: {unknown[:3]!r}; remove or train them")
        self.numbers = [number_of[name] for name in source.classes]
        self.read: Reader | None = None

    def __len__(self) -> int:
        return len(self.source)

    def read_into(self, out: torch.Tensor, keys: list[Key]) -> Told:
        """Write the images of one epoch to the first places of `out`, uint8 (N, size, size, 3), leaving out the bad."""
        if self.read is None:
            self.read = self.open_reader()
        targets, problems, num_by_pillow, places = [], [], 0, out.unbind()
        for (_, _, index), choose in zip(keys, self.views(keys), strict=True):
            done, target, problem, by_pillow = self._read_one(index, choose, places[len(targets)])
            targets += [target] * done
            problems += [problem] * bool(problem)
            num_by_pillow += by_pillow
        return targets, problems, num_by_pillow

    def views(self, keys: list[Key]) -> list[Choose]:
        if not self.augment:
            return [centre_view(self.size)] * len(keys)
        (epoch, first, _), (_, last, _) = keys[0], keys[-1]
        assert last - first == len(keys) - 1, "a batch is a range of positions"
        return [random_view(self.size, numbers) for numbers in random_numbers(self.seed, epoch, first, len(keys))]

    def _read_one(self, index: int, choose: Choose, out: torch.Tensor) -> tuple[bool, int, str, bool]:
        """Write the image to `out`, uint8 HWC; returns whether, its target, its problem, whether by Pillow.

        Problems travel as text: an exception raised in a loader worker would arrive as a page of traceback.
        """
        problem = ""
        for step in range(NEIGHBOURS_TRIED if self.fill_gaps else 1):
            place = (index + step) % len(self.source)
            try:
                box, view, by_pillow = self.read(self.source.content(place), choose)
                finish(box, view, out)
                return True, self.numbers[self.source.target(place)], problem, by_pillow
            # Pillow raises errors of many types for damaged files. MemoryError counts as this image's fault too. If
            # memory is short for another reason, the next images fail as well, and the run ends with this image's name.
            except Exception as error:
                problem = problem or f"{self.source.name(place)!r} is not a readable image ({what_failed(error)})"
        return False, 0, problem, False


def raw_reader():
    """The reader of packed pixels, which have nothing to decode."""

    def read(pixels: numpy.ndarray, choose: Choose):
        height, width = pixels.shape[:2]
        if height * width > most_pixels():
            raise ValueError(f"{width} x {height} pixels are more than {most_pixels()}")
        view = choose(height, width)
        box = pixels[view.top : view.top + view.height, view.left : view.left + view.width]
        return torch.from_numpy(numpy.ascontiguousarray(box)), view, False

    return read
