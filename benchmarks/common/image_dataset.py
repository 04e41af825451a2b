"""Images by (epoch, position, index), and batches of them, from a folder of files or from a packed file.

Augmentation is drawn from (seed, epoch, position): pixels depend on neither the ranks, nor the loader's workers, nor
where a resumed run started.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from benchmarks.common.crops import ChooseCrop, centre_crop, random_crop, random_numbers, resize_into
from benchmarks.common.decode import Decoded, Decoder, describe_error
from benchmarks.common.listing import ImageListing, list_images
from benchmarks.common.packed import PackedSource
from benchmarks.common.errors import UserError
from scripts.shared.options_as_typed import option_as_typed

MAX_REPLACEMENT_TRIES = 100  # that many unreadable files in a row are no accident

ImageKey = tuple[int, int, int]
"""Epoch, position in the epoch's order, index of the image."""


class ReadResult(NamedTuple):
    """What is known of a batch after it was read."""

    targets: list[int]
    """Class numbers, of the images that could be read."""
    problems: list[str]
    """A message for each image that could not be read."""
    num_by_pillow: int
    """Images that the decoder's library could not read, so that Pillow did."""


class FolderSource:
    """Images of a folder: `content` is what the Decoder takes, `name` is for messages. PackedSource has the same.

    Raises UserError where the folder cannot be read or holds no image.
    """

    def __init__(self, folder: Path):
        try:
            self.listing: ImageListing = list_images(folder)
        except OSError as error:
            raise UserError(
                f"cannot read {folder}: {error}; {option_as_typed('DATA')} must hold train/ and val/"
            ) from None
        if not len(self.listing):
            raise UserError(f"{folder} holds no class folder with images; expected {folder}/<class>/*.JPEG")
        self.classes, self.target, self.name = self.listing.classes, self.listing.target, self.listing.path

    def __len__(self) -> int:
        return len(self.listing)

    def content(self, index: int) -> bytes:
        with open(self.listing.path(index), "rb", buffering=0) as file:
            return file.read()


class ImageDataset:
    """The images of a source, cropped to size x size.

    open_decoder: called in the process that reads, at its first image.
    classes: those of train/, whose order numbers the targets. A val/ that lacks a class must not shift the others.
    replace_unreadable: the next readable image takes the place of an unreadable one. Training batches stay whole.
    """

    def __init__(
        self,
        source: FolderSource | PackedSource,
        open_decoder: Callable[[], Decoder],
        size: int,
        seed: int,
        classes: list[str],
    ):
        self.source, self.open_decoder, self.size, self.seed = source, open_decoder, size, seed
        self.augment = self.replace_unreadable = False
        self.classes = classes
        number_of = {name: number for number, name in enumerate(classes)}
        if unknown := [name for name in source.classes if name not in number_of]:
            raise UserError(f"val has classes that train/ lacks: {unknown[:3]!r}; remove or train them")
        self._target_of_class = [number_of[name] for name in source.classes]
        self._decoder: Decoder | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def decode(self) -> Decoder:
        """The decoder of this process."""
        if self._decoder is None:
            self._decoder = self.open_decoder()
        return self._decoder

    def read_into(self, out: torch.Tensor, keys: list[ImageKey]) -> ReadResult:
        """Write the images of one epoch to the first places of `out`, uint8 (N, size, size, 3).

        Unreadable images are left out.
        """
        targets: list[int] = []
        problems: list[str] = []
        num_by_pillow, places = 0, out.unbind()
        for (_, _, index), choose in zip(keys, self.crops(keys), strict=True):
            target, problem, by_pillow = self._read_one(index, choose, places[len(targets)])
            if target is not None:
                targets.append(target)
            if problem:
                problems.append(problem)
            num_by_pillow += by_pillow
        return ReadResult(targets, problems, num_by_pillow)

    def crops(self, keys: list[ImageKey]) -> list[ChooseCrop]:
        """The crop of each image of a batch, whose keys must be a range of positions."""
        if not self.augment:
            return [centre_crop(self.size)] * len(keys)
        (epoch, first, _), (_, last, _) = keys[0], keys[-1]
        assert last - first == len(keys) - 1, "a batch is a range of positions"
        return [random_crop(self.size, numbers) for numbers in random_numbers(self.seed, epoch, first, len(keys))]

    def _read_one(self, index: int, choose: ChooseCrop, out: torch.Tensor) -> tuple[int | None, str, bool]:
        """Write the image to `out`, uint8 HWC. Returns its target (None: nothing could be read), its problem ('' for
        none), and whether Pillow had to read it.

        Problems travel as text: an exception raised in a loader worker would arrive as a page of traceback.
        """
        problem = ""
        for step in range(MAX_REPLACEMENT_TRIES if self.replace_unreadable else 1):
            number = (index + step) % len(self.source)
            try:
                pixels, crop, by_pillow = self.decode(self.source.content(number), choose)
                resize_into(pixels, crop, out)
                return self._target_of_class[self.source.target(number)], problem, by_pillow
            # Pillow raises errors of many types for damaged files
            except Exception as error:
                problem = problem or f"{self.source.name(number)!r} is not a readable image ({describe_error(error)})"
        return None, problem, False


def packed_pixels_decoder() -> Decoder:
    """The Decoder of packed pixels, which only cuts the crop's box."""

    def decode(pixels: numpy.ndarray, choose: ChooseCrop) -> Decoded:
        height, width = pixels.shape[:2]
        crop = choose(height, width)
        box = pixels[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
        return Decoded(torch.from_numpy(numpy.ascontiguousarray(box)), crop, by_pillow=False)

    return decode
