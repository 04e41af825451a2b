"""The CPU time that this suite's loader spends on an image, by cause. Other work on the machine disturbs CPU time less
than wall-clock time.

The loader is rebuilt in stages. Each stage reads the same crops of the same images as the stage before, and does one
thing more. All stages are timed interleaved, many times. The cost of a cause is the median, over these rounds, of the
difference between its stage and the stage before.
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
from benchmarks.common.data.crops import ChooseCrop, Crop, random_numbers, resize_into
from benchmarks.common.data.image_dataset import ImageDataset, ImageKey
from benchmarks.common.data.loaders import Loader, build_loaders, open_datasets
from benchmarks.common.dist.devices import RankContext
from scripts.studies.loaders.bare_loops import always

NUM_BATCHES = 8  # that a stage reads in a round
NUM_WARMUP_ROUNDS = 2
CAUSES = ("bare loop", "seeding", "crop parameters", "collate", "queue")


COSTS_COLUMNS = ("loader", "cause", "us_per_image", "low", "high", "bare_share", "n")


def measure_costs(config: Config, num_rounds: int) -> pandas.DataFrame:
    """Rows of costs.csv, one per cause: CPU us_per_image with its 95 % interval (low, high), bare_share, and n.

    The causes: "seeding" makes the random numbers, "crop parameters" chooses crops from them, "collate" fills whole
    batches with targets instead of one place again and again, "queue" uses a worker process instead of the main one.
    bare_share: CPU time of the bare loop over that of this stage.
    """
    stages = loading_stages(dataclasses.replace(config, steps=NUM_BATCHES, workers=0))
    us_per_image: list[list[float]] = [[] for _ in stages]
    name = f"{config.loader}, {config.pack if config.loader == 'packed' else config.decoder}"
    for round_number in tqdm(range(NUM_WARMUP_ROUNDS + num_rounds), f"costs of {name}", disable=None, leave=False):
        for stage, of_stage in zip(stages, us_per_image, strict=True):
            began_us = cpu_us()
            stage()
            if round_number >= NUM_WARMUP_ROUNDS:
                of_stage.append((cpu_us() - began_us) / (NUM_BATCHES * config.global_batch))
    rows = []
    for number, cause in enumerate(CAUSES):
        before = us_per_image[number - 1] if number else [0.0] * num_rounds
        differences = [now - then for now, then in zip(us_per_image[number], before, strict=True)]
        interval = quantile_test(differences, p=0.5).confidence_interval(0.95)
        share = statistics.median(bare / now for bare, now in zip(us_per_image[0], us_per_image[number], strict=True))
        rows.append([name, cause, statistics.median(differences), interval.low, interval.high, share, num_rounds])
    return pandas.DataFrame(rows, columns=list(COSTS_COLUMNS))


def loading_stages(config: Config) -> list[Callable[[], object]]:
    """A function for each of CAUSES, which reads NUM_BATCHES batches, the same in each call."""
    context = RankContext(torch.device("cpu"))
    train, _ = build_loaders(config, context)
    with_queue, _ = build_loaders(dataclasses.replace(config, workers=1), context)
    images, batches = open_datasets(config)[0], [*train.sampler]
    crops_of_batches = [
        [crop_of(images, key, choose) for key, choose in zip(keys, images.crops(keys), strict=True)] for keys in batches
    ]
    out = torch.empty(config.image_size, config.image_size, 3, dtype=torch.uint8)

    def read(key: ImageKey, choose: ChooseCrop) -> None:
        box, crop, _ = images.decode(images.source.content(key[2]), choose)
        resize_into(box, crop, out)

    def bare_loop(seeded: bool = False) -> None:
        for keys, crops in zip(batches, crops_of_batches, strict=True):
            if seeded:
                random_numbers(config.seed, keys[0][0], keys[0][1], len(keys))
            for key, crop in zip(keys, crops, strict=True):
                read(key, always(crop))

    def with_crop_parameters() -> None:
        for keys in batches:
            for key, choose in zip(keys, images.crops(keys), strict=True):
                read(key, choose)

    def whole_loader(loader: Loader) -> Callable[[], None]:
        def one_pass() -> None:
            for _ in loader.host_batches:
                pass

        return one_pass

    return [
        bare_loop,
        lambda: bare_loop(seeded=True),
        with_crop_parameters,
        whole_loader(train),
        whole_loader(with_queue),
    ]


def crop_of(images: ImageDataset, key: ImageKey, choose: ChooseCrop) -> Crop:
    """The crop that the image gets."""
    _, crop, _ = images.decode(images.source.content(key[2]), choose)
    return crop


def cpu_us() -> float:
    """CPU time in microseconds of this process, with its threads that have ended, and of its living children."""
    return (time.process_time_ns() + sum(_on_cpu_ns(child.pid) for child in psutil.Process().children())) / 1e3


def _on_cpu_ns(pid: int) -> int:
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            total += int(file.read().split()[0])
    return total
