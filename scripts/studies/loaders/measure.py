"""Throughput of loaders, side by side: this suite's, bare loops that they could at best equal, and other projects'.

    ./bench study loaders --data data/imagenet-mini --out results/loaders

Images/s of one core and of all cores, without training: read, decoded, cropped at random to image_size, flipped and put
into batches of uint8. The loaders are timed in interleaved windows, each in a process of its own. A bare loop draws its
crops before it starts and makes no batches. What this suite's loader spends beyond its bare loop is measured by cause,
in CPU time. Libraries that are not installed are named with the command that installs them.
"""

import dataclasses
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
import pandas
from tqdm import tqdm

from benchmarks.common.config.config import Config
from benchmarks.common.dist.devices import device_name
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import make_own_folder
from benchmarks.common.system.machine import num_cores
from scripts.charts.figures import save_chart
from scripts.options.study_options import LoadersOptions
from scripts.setup.check_data import check_image_folder
from scripts.stats.formatting import plural
from scripts.stats.intervals import log_throughput, ratio_of_rounds, run_interval
from scripts.studies.loaders.chart import loaders_chart
from scripts.studies.loaders.cpu_costs import measure_costs
from scripts.studies.loaders.loader_variants import LoaderVariant, prepare_variants
from scripts.studies.loaders.timed_loaders import Batches
from scripts.studies.measured_csv import origin, set_tables_aside

WARMUP_IMAGES = 64
PLAIN = "torchvision, Pillow"
LOADERS_COLUMNS = (
    "cores", "loader", "n", "images_per_s", "low", "high", "times_plain", "times_low", "times_high",
    "times_bare", "times_bare_low", "times_bare_high",
)  # fmt: skip

Window = tuple[float, float]
"""Images and seconds."""
Case = tuple[str, int]
"""The name of a loader, and the number of cores."""


def main(options: LoadersOptions) -> int:
    if options.rounds < 2:
        raise UserError(f"rounds is {options.rounds}, but an interval needs at least 2")
    if options.turns < 6:
        raise UserError(f"turns is {options.turns}, but the interval of a median needs at least 6")
    check_image_folder(options.data)
    make_own_folder(options.out, "name a folder that you have made: --out")
    with tempfile.TemporaryDirectory() as temporary:
        config = Config(data=options.data, image_size=options.image_size, global_batch=32)
        variants = prepare_variants(config, Path(temporary), options.only.split())
        windows, failed = time_variants(variants, config, options)
        costs = costs_of_own_loaders(config, [variant.name for variant in variants], options.turns)
    machine = describe_machine()
    rates = table(windows, {variant.name: variant.bare for variant in variants})
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}")
    print(rates.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print("low, high: 95 % intervals over n windows, each in a process of its own; of ratios paired by round")
    print("\nwhat our loader spends, CPU microseconds an image; bare_share: of the bare loop, up to this cause:")
    print(costs.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    set_tables_aside(options.out, ("loaders", "costs"))
    about = origin() | {"machine": machine}
    rates = rates.assign(image_size=options.image_size, **about)
    write_text_atomically(options.out / "loaders.csv", rates.to_csv(index=False))
    write_text_atomically(options.out / "costs.csv", costs.assign(**about).to_csv(index=False))
    if len(costs) and len(rates):
        print("\nwritten:", *save_chart(loaders_chart(rates, costs), options.out, "loaders"), sep="\n  ")
    return int(bool(failed))


def time_variants(
    variants: Sequence[LoaderVariant], config: Config, options: LoadersOptions
) -> tuple[dict[Case, list[Window]], set[str]]:
    """(windows of each loader on one core and on all, the names of loaders that failed). The order of the loaders
    alternates between rounds."""
    cores = sorted(os.sched_getaffinity(0))
    cases = [(variant, num_cores) for num_cores in dict.fromkeys((1, len(cores))) for variant in variants]
    windows: dict[Case, list[Window]] = {(variant.name, num_cores): [] for variant, num_cores in cases}
    failed: set[str] = set()
    with tqdm(total=len(cases) * options.rounds, desc="windows", disable=None, leave=False) as bar:
        for round_number in range(options.rounds):
            for variant, num_cores in cases[:: -1 if round_number % 2 else 1]:
                bar.update()
                if variant.name in failed:
                    continue
                try:
                    timed = time_window(variant.batches, config, cores[:num_cores], options.window_s)
                    windows[variant.name, num_cores].append(timed)
                except UserError as error:  # the failure of one loader must not end the measurement of the others
                    failed.add(variant.name)
                    tqdm.write(f"failed: {variant.name}: {error}", file=sys.stderr)
    return {case: timed for case, timed in windows.items() if case[0] not in failed}, failed


def costs_of_own_loaders(config: Config, names: Sequence[str], num_rounds: int) -> pandas.DataFrame:
    """costs.csv of this suite's loaders that take part and have a bare loop."""
    import torch

    torch.set_num_threads(1)  # as in the windows, and in a loader's workers
    configs = {
        "ours, nvimgcodec": dataclasses.replace(config, decoder="nvimgcodec"),
        "ours, packed full": dataclasses.replace(config, loader="packed", pack="full"),
    }
    costs = [measure_costs(own, num_rounds) for name, own in configs.items() if name in names]
    return pandas.concat(costs) if costs else pandas.DataFrame()


def describe_machine() -> str:
    """The processor, the number of cores that this process may use, and the operating system."""
    import torch

    return f"{device_name(torch.device('cpu'))}, {plural(num_cores(), 'core')}, {platform.platform()}"


def time_window(batches: Batches, config: Config, cores: list[int], seconds: float) -> Window:
    """One window, in a process that is bound to these cores. Raises UserError where the process fails."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_window, args=(sender, batches, config, cores, seconds))
    process.start()
    sender.close()
    try:
        received: Window | str = receiver.recv()
    except EOFError:
        received = "it ended without a message"
    process.join()
    if isinstance(received, str):
        raise UserError(received)
    return received


def _send_window(sender: Connection, batches: Batches, config: Config, cores: list[int], seconds: float) -> None:
    import torch

    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    try:
        sizes = batches(config, len(cores))
        timed = _count(sizes, seconds, len(cores))
        if isinstance(sizes, Generator):
            sizes.close()  # which ends its threads or processes
        sender.send(timed)
    except Exception as error:  # shown as one line by the parent
        sender.send(f"{type(error).__name__}: {error}")


def _count(numbers: Iterator[int], seconds: float, num_cores: int) -> Window:
    num_warmup = 0
    while num_warmup < WARMUP_IMAGES * (1 + 2 * num_cores):  # and what workers had ready before the clock started
        num_warmup += next(numbers)
    num_images, began_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - began_s) < seconds:
        num_images += next(numbers)
    return num_images, elapsed_s


def table(windows: dict[Case, list[Window]], bare: dict[str, tuple[str, ...]]) -> pandas.DataFrame:
    """Rows of loaders.csv, one per case: images/s with its 95 % interval, the ratio to torchvision's plain pipeline,
    and the ratio to the fastest of its bare loops. Ratios are paired by rounds."""
    rows = []
    for (name, cores), windows_of_loader in windows.items():
        rate = run_interval(windows_of_loader)
        row: dict[str, object] = {
            "cores": cores,
            "loader": name,
            "n": len(windows_of_loader),
            "images_per_s": rate.value,
        }
        row |= {"low": rate.low, "high": rate.high}
        loops = [windows[loop, cores] for loop in bare.get(name, ()) if (loop, cores) in windows]
        fastest = max(loops, key=lambda loop: run_interval(loop).value, default=None)
        row |= ratio_columns("times_plain", "times", windows_of_loader, windows.get((PLAIN, cores)))
        rows.append(row | ratio_columns("times_bare", "times_bare", windows_of_loader, fastest))
    return pandas.DataFrame(rows, columns=list(LOADERS_COLUMNS))


def ratio_columns(
    name: str, prefix: str, windows: Sequence[Window], others: Sequence[Window] | None
) -> dict[str, float | None]:
    """The ratio of images/s and its interval as columns; no columns where `others` is None."""
    if others is None:
        return {}
    own, other = (log_throughput([numpy.array([each]) for each in taken]) for taken in (windows, others))
    found = ratio_of_rounds(own - other)
    return {name: found.value, f"{prefix}_low": found.low, f"{prefix}_high": found.high}
