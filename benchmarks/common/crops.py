"""The crop, resize and flip of an image, as torchvision's transforms do them, in two steps.

A Crop is chosen from the image's size alone, so that only its box has to be decoded. The crops are those of
v2.RandomResizedCrop and v2.RandomHorizontalFlip, with random numbers that belong to (seed, epoch, position).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch.nn.functional import interpolate

CROP_SCALE, CROP_RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of area and aspect, as in v2.RandomResizedCrop
LOG_RATIO = math.log(CROP_RATIO[0]), math.log(CROP_RATIO[1])
CROP_TRIES = 10
MAX_VALUES_ONE_THREAD = 32_767  # torch divides larger copies among threads (at::internal::GRAIN_SIZE)
NUMBERS_PER_IMAGE = 24  # two for each try, top, left, flip, and one to fill the generator's blocks of four


class Crop(NamedTuple):
    """The box of an image, the size to which the box is resized, and where the result is cut from it. In pixels."""

    top: int
    left: int
    height: int
    width: int
    new_height: int
    new_width: int
    cut_top: int = 0
    cut_left: int = 0
    flip: bool = False


ChooseCrop = Callable[[int, int], Crop]
"""The Crop of an image of this height and width. The same arguments give the same crop."""


def random_numbers(seed: int, epoch: int, first: int, num_images: int) -> list[list[float]]:
    """NUMBERS_PER_IMAGE numbers in [0, 1) for each position from `first` on. They do not depend on the batch.

    Philox 4x64-10 (Salmon et al., SC11) with the key (seed, epoch): block n of the stream follows from n alone.
    """
    key = numpy.array([seed % 2**64, epoch], numpy.uint64)  # of a list with a number above 2**63 numpy makes floats
    stream = numpy.random.Philox(key=key, counter=first * NUMBERS_PER_IMAGE // 4)
    raw = stream.random_raw(num_images * NUMBERS_PER_IMAGE).reshape(num_images, NUMBERS_PER_IMAGE)
    return ((raw >> 11) * 2.0**-53).tolist()


def random_crop(size: int, numbers: list[float]) -> ChooseCrop:
    """A random crop, resized to size x size and flipped half of the time. numbers: a row of random_numbers."""

    def choose(height: int, width: int) -> Crop:
        return Crop(*_random_box(height, width, numbers), size, size, flip=numbers[2 * CROP_TRIES + 2] < 0.5)

    return choose


def _random_box(height: int, width: int, numbers: list[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width, computed line by line as v2.RandomResizedCrop computes them."""
    area = height * width
    for first in range(0, 2 * CROP_TRIES, 2):
        target = area * (CROP_SCALE[0] + (CROP_SCALE[1] - CROP_SCALE[0]) * numbers[first])
        ratio = math.exp(LOG_RATIO[0] + (LOG_RATIO[1] - LOG_RATIO[0]) * numbers[first + 1])
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = numbers[2 * CROP_TRIES : 2 * CROP_TRIES + 2]
            return int(top * (height - h + 1)), int(left * (width - w + 1)), h, w
    if width / height < min(CROP_RATIO):
        w, h = width, round(width / min(CROP_RATIO))
    elif width / height > max(CROP_RATIO):
        w, h = round(height * max(CROP_RATIO)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def centre_crop(size: int) -> ChooseCrop:
    """The middle of an image whose shorter side is size * 256 / 224, as torchvision's references validate."""
    short = size * 256 // 224

    def choose(height: int, width: int) -> Crop:
        long = short * max(height, width) // min(height, width)
        h, w = (short, long) if height <= width else (long, short)
        return Crop(0, 0, height, width, h, w, round((h - size) / 2), round((w - size) / 2))

    return choose


def resize_into(box: torch.Tensor | Image.Image, crop: Crop, out: torch.Tensor) -> None:
    """Resize the box of a Crop, cut `out`'s size from it, and write that to `out`. All are uint8, height x width x 3.

    Pillow resizes its own images, torch's uint8 kernel all others. The two differ by 1 of 255.
    """
    if isinstance(box, Image.Image):
        resized = torch.from_numpy(
            numpy.array(box.resize((crop.new_width, crop.new_height), Image.Resampling.BILINEAR))
        )
    else:  # the batch's dimension first: else its stride hides that the channels are last
        shape = crop.new_height, crop.new_width
        resized = interpolate(box[None].permute(0, 3, 1, 2), shape, mode="bilinear", antialias=True)
        resized = resized[0].permute(1, 2, 0)
    height, width = out.shape[:2]
    cut = resized[crop.cut_top : crop.cut_top + height, crop.cut_left : crop.cut_left + width]
    # Where the training process reads, torch would wake all of its threads for 150 kB. numpy's copy does not.
    rows = height if not crop.flip or torch.get_num_threads() == 1 else max(1, MAX_VALUES_ONE_THREAD // (3 * width))
    for first in range(0, height, rows):
        some = cut[first : first + rows]
        numpy.copyto(out.numpy()[first : first + rows], (some.flip(1) if crop.flip else some).numpy())
