"""What our loader spends on an image, by cause: CPU time, which other work on the machine disturbs less than seconds.

Each step of the ladder reads the same crops of the same images as the one before, and does one thing more. All take
turns, many times; a cause's cost is the median over the turns of its step's difference from the one before.
"""

import contextlib
import dataclasses
import os
import statistics
import time
from collections.abc import Callable

import pandas
import psutil
import torch
from scipy.stats import quantile_test
from tqdm import tqdm

from benchmarks.common.config.config import Config
from benchmarks.common.data.crops import random_numbers, resize_into
from benchmarks.common.data.image_dataset import ImageDataset, ImageKey
from benchmarks.common.data.loaders import build_loaders, open_datasets
from benchmarks.common.dist.devices import RankContext

BATCHES = 8  # of a turn
WARM_TURNS = 2
CAUSES = ("bare loop", "seeding", "crop parameters", "collate", "queue")


def costs(config: Config, turns: int) -> pandas.DataFrame:
    """A row a cause: CPU us_per_image with its 95 % interval, the share of what is left to the bare loop, and n.

    seeding: the random numbers. collate: whole batches with targets instead of the same place again and again.
    queue: by one worker process instead of by the process that asks.
    bare_share: what the bare loop spends over what our loader spends up to this step.
    """
    steps = ladder(dataclasses.replace(config, steps=BATCHES, workers=0))
    taken: list[list[float]] = [[] for _ in steps]
    name = f"{config.loader}, {config.pack if config.loader == 'packed' else config.decoder}"
    for turn in tqdm(range(WARM_TURNS + turns), f"costs of {name}", disable=None, leave=False):
        for step, of_step in zip(steps, taken, strict=True):
            began = cpu_us()
            step()
            if turn >= WARM_TURNS:
                of_step.append((cpu_us() - began) / (BATCHES * config.global_batch))
    rows = []
    for number, cause in enumerate(CAUSES):
        before = taken[number - 1] if number else [0.0] * turns
        spent = [now - then for now, then in zip(taken[number], before, strict=True)]
        interval = quantile_test(spent, p=0.5).confidence_interval(0.95)
        share = statistics.median(bare / now for bare, now in zip(taken[0], taken[number], strict=True))
        rows.append([name, cause, statistics.median(spent), interval.low, interval.high, share, turns])
    return pandas.DataFrame(rows, columns=["loader", "cause", "us_per_image", "low", "high", "bare_share", "n"])


def ladder(config: Config) -> list[Callable[[], object]]:
    """What one turn of each of CAUSES does: BATCHES batches, each time the same."""
    train, _ = build_loaders(config, RankContext(torch.device("cpu")))
    with_queue, _ = build_loaders(dataclasses.replace(config, workers=1), RankContext(torch.device("cpu")))
    images, batches = open_datasets(config)[0], [*train.batches]
    drawn = [
        [crop_of(images, key, choose) for key, choose in zip(keys, images.crops(keys), strict=True)] for keys in batches
    ]
    out = torch.empty(config.image_size, config.image_size, 3, dtype=torch.uint8)

    def read(key: ImageKey, choose: Callable) -> None:
        box, crop, _ = images.decode(images.source.content(key[2]), choose)
        resize_into(box, crop, out)

    def bare(seeded: bool = False) -> None:
        for keys, views in zip(batches, drawn, strict=True):
            if seeded:
                random_numbers(config.seed, keys[0][0], keys[0][1], len(keys))
            for key, view in zip(keys, views, strict=True):
                read(key, lambda *_, view=view: view)

    def cropped() -> None:
        for keys in batches:
            for key, choose in zip(keys, images.crops(keys), strict=True):
                read(key, choose)

    def whole(loader) -> Callable[[], None]:
        def one_pass() -> None:
            for _ in loader.host_batches:
                pass

        return one_pass

    return [bare, lambda: bare(seeded=True), cropped, whole(train), whole(with_queue)]


def crop_of(images: ImageDataset, key: ImageKey, choose: Callable):
    """The Crop that the image gets."""
    _, crop, _ = images.decode(images.source.content(key[2]), choose)
    return crop


def cpu_us() -> float:
    """CPU time of this process, with its threads that have ended, and of its living children."""
    return (time.process_time_ns() + sum(_on_cpu_ns(child.pid) for child in psutil.Process().children())) / 1e3


def _on_cpu_ns(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total
