"""Bare loops over decoded crops, without seeds, random numbers and batches: at best a loader is as fast."""

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator

import numpy
import torch

from benchmarks.common.config.config import Config
from benchmarks.common.data.crops import ChooseCrop, Crop, random_crop, random_numbers, resize_into
from benchmarks.common.data.decode import Decoder, nvimgcodec_decoder, open_image
from benchmarks.common.data.image_dataset import ImageDataset, packed_pixels_decoder
from benchmarks.common.data.loaders import open_datasets
from scripts.studies.loaders.timed_loaders import Batches

NUM_DRAWN_CROPS = 2000  # that a bare loop draws before it starts

BareLoop = Callable[[Config], Iterator[int]]
"""A loop on one core: configuration -> how many images each item stands for, without end."""


def draw_crops(images: ImageDataset, config: Config) -> list[tuple[int, Crop]]:
    """(index, crop) of images in random order, NUM_DRAWN_CROPS of them."""
    order = numpy.random.default_rng(0).permutation(NUM_DRAWN_CROPS) % len(images)
    numbers = random_numbers(0, 0, 0, NUM_DRAWN_CROPS)
    sizes: dict[int, tuple[int, int]] = {}
    found = []
    for index, of_image in zip(order.tolist(), numbers, strict=True):
        if index not in sizes:
            sizes[index] = size_of(images, index)
        found.append((index, random_crop(config.image_size, of_image)(*sizes[index])))
    return found


def size_of(images: ImageDataset, index: int) -> tuple[int, int]:
    """(height, width) of an image."""
    content = images.source.content(index)
    if not isinstance(content, bytes):
        return content.shape[0], content.shape[1]
    with open_image(content) as image:
        return image.height, image.width


def bare_loop(images: ImageDataset, decode: Decoder, config: Config) -> Iterator[int]:
    crops, out = draw_crops(images, config), torch.empty(config.image_size, config.image_size, 3, dtype=torch.uint8)
    while True:
        for index, crop in crops:
            box, *_ = decode(images.source.content(index), always(crop))
            resize_into(box, crop, out)
            yield 1


def always(crop: Crop) -> ChooseCrop:
    """Chooses this crop, whatever the size of the image."""
    return lambda height, width: crop


def bare_nvimgcodec_loop(config: Config) -> Iterator[int]:
    return bare_loop(open_datasets(config)[0], nvimgcodec_decoder(), config)


def bare_packed_loop(packed: Config) -> BareLoop:
    return lambda config: bare_loop(
        open_datasets(dataclasses.replace(packed, image_size=config.image_size))[0], packed_pixels_decoder(), config
    )


def new_images(count: Callable[[], int]) -> Iterator[int]:
    """How many images were counted since the last item, a hundred times a second."""
    seen = 0
    while True:
        time.sleep(0.01)
        now = count()
        yield now - seen
        seen = now


def run_in_threads(loop: BareLoop) -> Batches:
    """As many loops as cores, each in a thread; yields how many images all have made since the last item."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        if cores == 1:
            yield from loop(config)
        counts, stop = [0] * cores, threading.Event()

        def work(number: int, numbers: Iterator[int]) -> None:
            while not stop.is_set():
                counts[number] += next(numbers)

        threads = [threading.Thread(target=work, args=(n, loop(config)), daemon=True) for n in range(cores)]
        for thread in threads:
            thread.start()
        try:
            yield from new_images(lambda: sum(counts))
        finally:
            stop.set()

    return batches


def run_in_processes(loop: BareLoop) -> Batches:
    """As many loops as cores, each in a process; yields how many images all have made since the last item."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        counts = torch.zeros(cores, dtype=torch.int64).share_memory_()
        parent, children = os.getpid(), []
        for number in range(cores):
            if not (child := os.fork()):
                for images in loop(config):
                    counts[number] += images
                    if os.getppid() != parent:
                        os._exit(0)
            children.append(child)
        try:
            yield from new_images(lambda: int(counts.sum()))
        finally:
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)

    return batches
