"""Which part of an image is read, and how its pixels get their size: as torchvision's transforms would, in two steps.

First a View is chosen, from the image's size alone; then only its box has to be decoded. What v2.RandomResizedCrop and
v2.RandomHorizontalFlip make of random numbers is made of numbers here that belong to (seed, epoch, position): a
generator that counts gives those of a whole batch at once, and no state is shared between threads.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch.nn.functional import interpolate

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop's area and sides, as v2.RandomResizedCrop has them
LOG_RATIO = math.log(RATIO[0]), math.log(RATIO[1])
TRIES = 10
OF_ONE_THREAD = 32_767  # values; torch divides more than so many among threads (at::internal::GRAIN_SIZE)
NUMBERS = 24  # an image's: two for each try, top, left, flip, and one to fill the generator's blocks of four


class View(NamedTuple):
    """The box of an image, the size that it is resized to, and where in that the result is cut out. In pixels."""

    top: int
    left: int
    height: int
    width: int
    new_height: int
    new_width: int
    cut_top: int = 0
    cut_left: int = 0
    flip: bool = False


Choose = Callable[[int, int], View]
"""The View of an image of that height and width. Asked twice, it says the same."""


def most_pixels() -> int:
    """Of an image that is no bomb, as Pillow has it, packed or not."""
    return 2 * (Image.MAX_IMAGE_PIXELS or sys.maxsize)


def random_numbers(seed: int, epoch: int, first: int, num_images: int) -> list[list[float]]:
    """NUMBERS numbers in [0, 1) for each of the positions from `first` on, the same in whatever batch they are drawn.

    Philox 4x64-10 (Salmon et al., SC11) with the key (seed, epoch): block n of the stream follows from n alone.
    """
    key = numpy.array([seed % 2**64, epoch], numpy.uint64)  # of a list with a number above 2**63 numpy makes floats
    stream = numpy.random.Philox(key=key, counter=first * NUMBERS // 4)
    raw = stream.random_raw(num_images * NUMBERS).reshape(num_images, NUMBERS)
    return ((raw >> 11) * 2.0**-53).tolist()


def random_view(size: int, numbers: list[float]) -> Choose:
    """A random crop, resized to size x size and flipped half of the time, made of these random_numbers."""

    def choose(height: int, width: int) -> View:
        return View(*_box(height, width, numbers), size, size, flip=numbers[2 * TRIES + 2] < 0.5)

    return choose


def _box(height: int, width: int, numbers: list[float]) -> tuple[int, int, int, int]:
    """Top, left, height, width: line by line what v2.RandomResizedCrop makes of its numbers."""
    area = height * width
    for first in range(0, 2 * TRIES, 2):
        target = area * (SCALE[0] + (SCALE[1] - SCALE[0]) * numbers[first])
        ratio = math.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * numbers[first + 1])
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = numbers[2 * TRIES : 2 * TRIES + 2]
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    if width / height < min(RATIO):
        w, h = width, round(width / min(RATIO))
    elif width / height > max(RATIO):
        w, h = round(height * max(RATIO)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def centre_view(size: int) -> Choose:
    """The middle of an image whose shorter side is size * 256 / 224, as torchvision's references validate.

    Asked for the View of a line of 1 x 65,000 pixels, which would become 17 million wide, it raises ValueError.
    """
    short = size * 256 // 224

    def choose(height: int, width: int) -> View:
        long = short * max(height, width) // min(height, width)
        if short * long > most_pixels():
            raise ValueError(f"{width} x {height} pixels would be resized to {max(short * long // 10**6, 1)} million")
        h, w = (short, long) if height <= width else (long, short)
        return View(0, 0, height, width, h, w, round((h - size) / 2), round((w - size) / 2))

    return choose


def finish(box: torch.Tensor | Image.Image, view: View, out: torch.Tensor) -> None:
    """Resize a View's box, cut `out`'s size from it, and write it there. All uint8, height x width x 3.

    Pillow resizes its own images, torchvision's uint8 kernel the others: they differ by 1 of 255, in one of
    millions of values by 2.
    """
    if isinstance(box, Image.Image):
        resized = torch.from_numpy(numpy.array(box.resize((view.new_width, view.new_height), Image.BILINEAR)))
    else:  # the batch's dimension first: else its stride hides from torch that the channels are last
        shape = view.new_height, view.new_width
        resized = interpolate(box[None].permute(0, 3, 1, 2), shape, mode="bilinear", antialias=True)
        resized = resized[0].permute(1, 2, 0)
    height, width = out.shape[:2]
    cut = resized[view.cut_top : view.cut_top + height, view.cut_left : view.cut_left + width]
    # Where a rank reads itself, with several threads, torch would wake them all for 150 kB. numpy's copy does not.
    rows = height if not view.flip or torch.get_num_threads() == 1 else max(1, OF_ONE_THREAD // (3 * width))
    for first in range(0, height, rows):
        some = cut[first : first + rows]
        numpy.copyto(out.numpy()[first : first + rows], (some.flip(1) if view.flip else some).numpy())
