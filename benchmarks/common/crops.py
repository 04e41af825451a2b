"""Which part of an image is read, and how its pixels get their size: as torchvision's transforms would, in two steps.

First a View is chosen, from the image's size alone; then only its box has to be decoded. The numbers are drawn as
v2.RandomResizedCrop and v2.RandomHorizontalFlip draw them, from a generator of the image's own, so that no state is
shared between threads.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy
import torch
from PIL import Image
from torch.nn.functional import interpolate

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)  # of a random crop's area and sides, as v2.RandomResizedCrop has them
LOG_RATIO = torch.log(torch.tensor(RATIO)).tolist()
TRIES = 10


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


def random_view(size: int, numbers: tuple[int, ...]) -> Choose:
    """A random crop, resized to size x size and flipped half of the time: drawn from these numbers alone."""

    def choose(height: int, width: int) -> View:
        generator = torch.Generator()
        generator.manual_seed(int(numpy.random.SeedSequence(numbers).generate_state(1, numpy.uint64)[0] >> 1))
        top, left, box_height, box_width = _draw_box(height, width, generator)
        flip = torch.rand((), generator=generator).item() < 0.5
        return View(top, left, box_height, box_width, size, size, flip=flip)

    return choose


def _draw_box(height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
    """Top, left, height, width: line by line what v2.RandomResizedCrop does, with the same numbers in float32."""
    area, number = height * width, torch.empty(())
    for _ in range(TRIES):
        target = area * number.uniform_(*SCALE, generator=generator).item()
        ratio = number.uniform_(*LOG_RATIO, generator=generator).exp_().item()
        w, h = round(math.sqrt(target * ratio)), round(math.sqrt(target / ratio))
        if 0 < w <= width and 0 < h <= height:
            top = torch.randint(height - h + 1, (), generator=generator).item()
            return top, torch.randint(width - w + 1, (), generator=generator).item(), h, w
    if width / height < min(RATIO):
        w, h = width, round(width / min(RATIO))
    elif width / height > max(RATIO):
        w, h = round(height * max(RATIO)), height
    else:
        w, h = width, height
    return (height - h) // 2, (width - w) // 2, h, w


def centre_view(size: int) -> Choose:
    """The middle of an image whose shorter side is size * 256 / 224, as torchvision's references validate."""
    short = size * 256 // 224

    def choose(height: int, width: int) -> View:
        long = short * max(height, width) // min(height, width)
        h, w = (short, long) if height <= width else (long, short)
        return View(0, 0, height, width, h, w, round((h - size) / 2), round((w - size) / 2))

    return choose


def finish(box: torch.Tensor | Image.Image, view: View, out: torch.Tensor) -> None:
    """Resize a View's box, cut `out`'s size from it, and write it there. All uint8, height x width x 3.

    Pillow resizes its own images, torchvision's uint8 kernel the others: they differ by 1 of 255 at most.
    """
    if isinstance(box, Image.Image):
        resized = torch.from_numpy(numpy.array(box.resize((view.new_width, view.new_height), Image.BILINEAR)))
    else:  # the batch's dimension first: else its stride hides from torch that the channels are last
        shape = view.new_height, view.new_width
        resized = interpolate(box[None].permute(0, 3, 1, 2), shape, mode="bilinear", antialias=True)
        resized = resized[0].permute(1, 2, 0)
    height, width = out.shape[:2]
    cut = resized[view.cut_top : view.cut_top + height, view.cut_left : view.cut_left + width]
    # numpy's copy stays in this thread; torch's would wake all of a rank's threads for 150 kB
    numpy.copyto(out.numpy(), (cut.flip(1) if view.flip else cut).numpy())
