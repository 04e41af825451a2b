"""The reference's images: ordered, cropped and flipped by code of its own, and by torchvision's transforms. Each is
decoded whole, and the loader decodes a part of it."""

import concurrent.futures
import functools
import math
import os
import threading
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torchvision.datasets.folder import IMG_EXTENSIONS
from torchvision.transforms import v2
from torchvision.transforms.functional import pil_to_tensor

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import Crop, Decoder, open_decoder, open_image

ONE_AT_A_TIME = threading.Lock()
NUMBERS = 24  # of a crop and a flip, the last one unused
IMAGENET_MEAN = (0.485, 0.456, 0.406)  # as torchvision documents for its models
IMAGENET_STD = (0.229, 0.224, 0.225)


@functools.cache
def labelled_images(folder: Path) -> list[tuple[Path, int]]:
    """(path, class number), in the order of names; the numbers are train's."""
    classes = sorted(path.name for path in (folder.parent / "train").iterdir() if path.is_dir())
    return [
        (Path(root, name), number)
        for number, of_class in enumerate(classes)
        for root, _, names in sorted(os.walk(folder / of_class, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(IMG_EXTENSIONS)
    ]


def num_classes(config: Config) -> int:
    return 1 + max(number for _, number in labelled_images(Path(config.data) / "train"))


def batch_indices(config: Config, num_images: int, epoch: int, step: int) -> list[int]:
    """Of shuffled passes. The seed is that of common/loader.py."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
    order: list[int] = []
    while len(order) < (step + 1) * config.global_batch:
        order += torch.randperm(num_images, generator=generator).tolist()
    return order[step * config.global_batch :][: config.global_batch]


@functools.lru_cache(maxsize=4)  # a step is taken anew with another average
def training_batch(config: Config, epoch: int, step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    images = labelled_images(Path(config.data) / "train")
    batch = batch_indices(config, len(images), epoch, step)
    numbers: list[list[float] | None] = [None] * len(batch)
    if config.augment:
        numbers = random_numbers(config, epoch, step).tolist()
    return decode(config, images, list(zip(batch, numbers, strict=True)), device)


def random_numbers(config: Config, epoch: int, step: int) -> numpy.ndarray:
    """float64 [global_batch, NUMBERS]. Key and order are those of common/images.py."""
    stream = numpy.random.Generator(numpy.random.Philox(key=[config.seed, epoch]))
    return stream.random(((step + 1) * config.global_batch, NUMBERS))[-config.global_batch :]


Key = tuple[int, list[float] | None]
"""None: the centre crop."""


def decode(
    config: Config, images: list[tuple[Path, int]], keys: list[Key], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised crops, float32 (N, 3, image_size, image_size), and int64 targets (N,). Raises UserError for an
    unreadable image."""
    with concurrent.futures.ThreadPoolExecutor() as threads:  # no rank runs beside it: all cores are free
        read = list(threads.map(lambda key: read_image(config, images, key), keys))
    mean, std = (
        torch.tensor(values, device=device).mul(255).view(1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    memory_format = torch.channels_last if config.memory_format == "channels_last" else torch.contiguous_format
    pixels = torch.stack([pixels for pixels, _ in read]).to(device).float()
    # on a GPU the suite multiplies and adds in one operation, which rounds once
    pixels = pixels.sub(mean).div(std) if device.type == "cpu" else torch.addcmul(-mean / std, pixels, 1 / std)
    return pixels.contiguous(memory_format=memory_format), torch.tensor([target for _, target in read], device=device)


def read_image(config: Config, images: list[tuple[Path, int]], key: Key) -> tuple[torch.Tensor, int]:
    """uint8 (3, image_size, image_size), and its class."""
    index, numbers = key
    path, target = images[index]
    try:
        content = path.read_bytes()
        if config.decoder:
            whole: Any = decoder_of_thread(threading.get_ident(), config.decoder)(content, whole_image).pixels
        else:  # packed pixels are Pillow's, and resized as a tensor
            whole = torch.from_numpy(numpy.array(open_image(content).convert("RGB")))
        if isinstance(whole, Image.Image):
            return pil_to_tensor(crop(config.image_size, numbers, whole)), target
        return crop(config.image_size, numbers, whole.permute(2, 0, 1)), target
    except Exception as error:  # of whatever type: it is this image's
        raise UserError(f"{str(path)!r} is not a readable image ({error}); fix or remove it") from None


def whole_image(height: int, width: int) -> Crop:
    return Crop(0, 0, height, width, height, width)


@functools.cache
def decoder_of_thread(thread: int, name: str) -> Decoder:
    with ONE_AT_A_TIME:  # it redirects stderr, which belongs to the process
        return open_decoder(name)


def crop(size: int, numbers: list[float] | None, image: Any) -> Any:
    if numbers is None:
        return v2.Compose([v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)])(image)
    view = v2.functional.resized_crop(image, *random_box(numbers, *v2.functional.get_size(image)), [size, size])
    return v2.functional.horizontal_flip(view) if numbers[22] < 0.5 else view


def random_box(numbers: list[float], height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height, width as torchvision's RandomResizedCrop.get_params: ten tries of an area and a ratio, numbers
    0 to 19, then the place, 20 and 21; where none fits, the middle."""
    low, high = math.log(3 / 4), math.log(4 / 3)
    for of_area, of_ratio in zip(numbers[:20:2], numbers[1:20:2], strict=True):
        area, ratio = height * width * (0.08 + (1 - 0.08) * of_area), math.exp(low + (high - low) * of_ratio)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return math.floor(numbers[20] * (height - h + 1)), math.floor(numbers[21] * (width - w + 1)), h, w
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    return (height - h) // 2, (width - w) // 2, h, w
