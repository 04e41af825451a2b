"""Images by (epoch, position, index), and batches of them, from a folder of files or from a packed file.

The augmentation of an image is drawn from (seed, epoch, position), so that pixels depend on neither the ranks, nor
the loader's workers, nor where a resumed run started.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch.utils.data import get_worker_info

from benchmarks.common.crops import Choose, centre_view, finish, random_view
from benchmarks.common.decode import DECODE_ERRORS, Reader
from benchmarks.common.errors import UserError
from benchmarks.common.listing import Listing, list_images

NEIGHBOURS_TRIED = 100  # that many unreadable files in a row are no accident

Key = tuple[int, int, int]
"""Epoch, position in the epoch's order, index of the image."""
Batch = tuple[torch.Tensor, torch.Tensor, list[str], int]
"""uint8 NCHW images (channels last in memory), int64 targets, problems of the unreadable, how many Pillow read."""


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
        with open(self.listing.path(index), "rb") as file:
            return file.read()


class Photographs:
    """The images of a Source, cropped to size x size. Its items are (uint8 CHW image or None, target, problem).

    `problem` is '' or names a file that could not be decoded. With `fill_gaps`, the next readable image takes its
    place, so that training batches stay whole. open_reader is called in the process that reads, at its first image.
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

    def __getitem__(self, key: Key) -> tuple[torch.Tensor | None, int, str]:
        out = torch.empty(self.size, self.size, 3, dtype=torch.uint8)
        done, target, problem, _ = self._read_one(key, out)
        return out.permute(2, 0, 1) if done else None, target, problem

    def __getitems__(self, keys: list[Key]) -> Batch:
        images = _empty_batch(len(keys), self.size)
        targets, problems, num_by_pillow = [], [], 0
        for key in keys:
            done, target, problem, by_pillow = self._read_one(key, images[len(targets)])
            targets += [target] * done
            problems += [problem] * bool(problem)
            num_by_pillow += by_pillow
        return images[: len(targets)].permute(0, 3, 1, 2), torch.tensor(targets), problems, num_by_pillow

    def _read_one(self, key: Key, out: torch.Tensor) -> tuple[bool, int, str, bool]:
        """Write the image to `out`, uint8 HWC; returns whether, its target, its problem, whether by Pillow.

        Problems travel as text: an exception raised in a loader worker would arrive as a page of traceback.
        """
        epoch, position, index = key
        if self.read is None:
            self.read = self.open_reader()
        choose: Choose = (
            random_view(self.size, (self.seed, epoch, position)) if self.augment else centre_view(self.size)
        )
        problem = ""
        for step in range(NEIGHBOURS_TRIED if self.fill_gaps else 1):
            place = (index + step) % len(self.source)
            try:
                box, view, by_pillow = self.read(self.source.content(place), choose)
                finish(box, view, out)
                return True, self.numbers[self.source.target(place)], problem, by_pillow
            except DECODE_ERRORS as error:
                problem = problem or f"{self.source.name(place)!r} is not a readable image ({error})"
        return False, 0, problem, False


def _empty_batch(num_images: int, size: int) -> torch.Tensor:
    """uint8 (N, size, size, 3), in a loader worker in memory that it shares with the training process."""
    shape = num_images, size, size, 3
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(num_images * size * size * 3)
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)
