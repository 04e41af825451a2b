"""How fast are loaders, and is loading the limit of training?

    ./bench study loaders --data /path/to/imagenet

First images/s of all cores, without training: this suite's loader with each decoder, beside torchvision's, window by
window. Then the strategy trains on all ranks with one synthetic batch and with images, in turn: what training loses by
loading is the loader's. Writes loaders.csv, sweeps.json and rows of a result set.
"""

import dataclasses
import multiprocessing
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pandas
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.config import PREFETCHED_PER_WORKER, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.images import DECODERS, import_problem, open_image
from benchmarks.common.loader import build_loaders
from benchmarks.common.rank import Rank
from scripts.data.check import check_image_folder
from scripts.results.formatting import text_table
from scripts.results.intervals import log_throughput, ratio_of_rounds, strategy_throughput
from scripts.results.result_set import load_set
from scripts.runner import preflight
from scripts.runner.request import read_request
from scripts.shared import source_version
from scripts.studies.loaders.limit import FILE, NO_LOADING, PLAIN, describe_limit, rates_cells
from scripts.studies.options import LoadersOptions, SweepOptions
from scripts.studies.sweep import plan as sweep

BATCH, WARMUP_IMAGES = 32, 64
Window = tuple[float, float]
"""Images and seconds."""


def main(options: LoadersOptions, flags: Sequence[str]) -> int:
    request = read_request(options, flags)
    config = load_config(request.flags)
    if config.loader == NO_LOADING:
        raise UserError("loader synthetic reads nothing; leave --loader out")
    if options.repeats < 2:
        raise UserError(f"--repeats is {options.repeats}, but an interval needs more; 5 decide")
    check_image_folder(config.data)
    results = preflight.open_result_set(options.results, "loaders-")
    rates, failed = time_loaders(config, options)
    print(text_table(rates_cells(rates), left_aligned=(0, 2, 4)))
    about = {"machine": machine.processor_name(), "commit": source_version.commit() or ""}
    write_text_atomically(results / FILE, rates.assign(image_size=config.image_size, **about).to_csv(index=False))
    code = train_with_and_without(options, flags, config, results)
    print("\n" + "\n".join(describe_limit(load_set(results))))
    return code or int(failed)


# --- loaders alone ------------------------------------------------------------------------------------------------


def time_loaders(config: Config, options: LoadersOptions) -> tuple[pandas.DataFrame, bool]:
    """(a row for each loader, whether one failed). The order alternates between rounds."""
    cores = machine.num_cores()
    alone = dataclasses.replace(config, global_batch=BATCH, batch_per_device=0, workers=cores, loader="folder")
    names = [PLAIN]
    for decoder, library in DECODERS.items():
        if problem := import_problem(decoder):
            print(f"left out: {decoder}: {problem}; pip install {library.package}")
        else:
            names.append(f"ours, {decoder}")
    windows: dict[str, list[Window]] = {name: [] for name in names}
    num_failed = 0
    rounds = [names[:: -1 if number % 2 else 1] for number in range(options.repeats)]
    for name in tqdm([name for each in rounds for name in each], "windows", disable=None, leave=False):
        if name in windows:
            try:
                with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as process:
                    timed = process.submit(time_window, name, alone, options.window_s).result()
                windows[name].append(timed)
            except Exception as error:  # the failure of one loader must not end the measurement of the others
                del windows[name]
                num_failed += 1
                tqdm.write(f"failed: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    return rates_of(windows, cores), num_failed > 0


def time_window(name: str, config: Config, seconds: float) -> Window:
    """In a process of its own: what a loader leaves behind ends with it."""
    torch.set_num_threads(1)
    if name == PLAIN:
        sizes = batch_sizes(torchvision_loader(config))
    else:
        decoder: Any = name.removeprefix("ours, ")
        train, _ = build_loaders(dataclasses.replace(config, decoder=decoder), Rank())
        sizes = batch_sizes(train.host_batches)
    num_warmup = 0
    while num_warmup < WARMUP_IMAGES * (
        1 + 2 * int(config.workers)
    ):  # and what workers had ready before the clock started
        num_warmup += next(sizes)
    num_images, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        num_images += next(sizes)
    sizes.close()  # which ends its threads or processes
    return num_images, elapsed_s


def torchvision_loader(config: Config) -> DataLoader:
    """ImageFolder and torchvision's transforms in torch's DataLoader."""
    transform = v2.Compose([v2.RandomResizedCrop(config.image_size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(Path(config.data) / "train", transform, loader=read_with_pillow)
    return DataLoader(images, config.global_batch, True, num_workers=int(config.workers), persistent_workers=True)


def read_with_pillow(path: str) -> Image.Image:
    """As torchvision's ImageFolder reads a file, but only JPEGs and PNGs: Pillow starts Ghostscript for an EPS."""
    return open_image(Path(path).read_bytes()).convert("RGB")


def batch_sizes(batches: Any) -> Generator[int, None, None]:
    """Of one epoch after the other."""
    while True:
        for images, *_ in batches:
            yield len(images)


def rates_of(windows: Mapping[str, Sequence[Window]], cores: int) -> pandas.DataFrame:
    """Rows of loaders.csv, one a loader: images/s with its 95 % interval, and the ratio to PLAIN, paired by rounds."""
    rows = []
    for name, timed in windows.items():
        runs = [numpy.array([each]) for each in timed]
        rate = strategy_throughput(runs)
        row = {"loader": name, "cores": cores, "n": len(timed), "images_per_s": rate.value}
        row |= {"low": rate.low, "high": rate.high, "per_core": rate.value / cores}
        if plain := windows.get(PLAIN):
            over = ratio_of_rounds(log_throughput(runs) - log_throughput([numpy.array([each]) for each in plain]))
            row |= {"times_plain": over.value, "times_low": over.low, "times_high": over.high}
        rows.append(row)
    return pandas.DataFrame(rows)


# --- training with and without loading ------------------------------------------------------------------------------


def train_with_and_without(options: LoadersOptions, flags: Sequence[str], config: Config, results: Path) -> int:
    """A sweep of the loader on all ranks, which share the machine's cores and disk. Its warm-up uses up what the
    workers read ahead."""
    workers = machine.resolve_num_workers(config.workers, machine.num_gpus() > 0)
    read_ahead = 1 + config.prefetch + PREFETCHED_PER_WORKER * workers
    chosen = SweepOptions(
        strategy=options.strategy,
        key="loader",
        values=(NO_LOADING, config.loader),
        data=Path(config.data),
        config=options.config,
        results=results,
        nproc=options.nproc,
        repeats=options.repeats,
    )
    return sweep.main(chosen, [*flags, "--warmup-steps", str(max(config.warmup_steps, read_ahead))])
