"""Throughput of loaders, side by side: this suite's with each decoder and with packed images, and torchvision's.

    ./bench study loaders --data data/imagenet-mini --out results/loaders

Images/s of one core and of all cores, without training: read, decoded, cropped at random to image_size, flipped and put
into batches of uint8. The loaders are timed in interleaved windows, each in a process of its own. Decoders that are not
installed are named with the command that installs them.
"""

import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
import pandas
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.machine import num_cores
from benchmarks.common.rank import device_name
from scripts.charts.figures import save_chart
from scripts.data.check import check_image_folder
from scripts.options.study_options import LoadersOptions
from scripts.results.formatting import plural
from scripts.results.intervals import log_throughput, ratio_of_rounds, run_interval
from scripts.studies.loaders.chart import loaders_chart
from scripts.studies.loaders.loader_variants import Batches, prepare_variants
from scripts.studies.measured_csv import origin, set_tables_aside

WARMUP_IMAGES = 64
PLAIN = "torchvision, Pillow"
LOADERS_COLUMNS = (
    "cores", "loader", "n", "images_per_s", "low", "high", "times_plain", "times_low", "times_high",
)  # fmt: skip

Window = tuple[float, float]
"""Images and seconds."""
Case = tuple[str, int]
"""The name of a loader, and the number of cores."""


def main(options: LoadersOptions) -> int:
    if options.rounds < 2:
        raise UserError(f"rounds is {options.rounds}, but an interval needs at least 2")
    check_image_folder(options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        config = Config(data=options.data, image_size=options.image_size, global_batch=32)
        variants = prepare_variants(config, Path(temporary), options.only.split())
        windows, failed = time_variants(variants, config, options)
    machine = describe_machine()
    rates = table(windows)
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}")
    print(rates.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print("low, high: 95 % intervals over n windows, each in a process of its own; of ratios paired by round")
    set_tables_aside(options.out, ("loaders",))
    rates = rates.assign(image_size=options.image_size, **origin() | {"machine": machine})
    write_text_atomically(options.out / "loaders.csv", rates.to_csv(index=False))
    if len(rates):
        print("\nwritten:", *save_chart(loaders_chart(rates), options.out, "loaders"), sep="\n  ")
    return int(bool(failed))


def time_variants(
    variants: Mapping[str, Batches], config: Config, options: LoadersOptions
) -> tuple[dict[Case, list[Window]], set[str]]:
    """(windows of each loader on one core and on all, the names of loaders that failed). The order of the loaders
    alternates between rounds."""
    cores = sorted(os.sched_getaffinity(0))
    cases = [(name, num_cores) for num_cores in dict.fromkeys((1, len(cores))) for name in variants]
    windows: dict[Case, list[Window]] = {case: [] for case in cases}
    failed: set[str] = set()
    with tqdm(total=len(cases) * options.rounds, desc="windows", disable=None, leave=False) as bar:
        for round_number in range(options.rounds):
            for name, num_cores in cases[:: -1 if round_number % 2 else 1]:
                bar.update()
                if name in failed:
                    continue
                try:
                    timed = time_window(variants[name], config, cores[:num_cores], options.window_s)
                    windows[name, num_cores].append(timed)
                except UserError as error:  # the failure of one loader must not end the measurement of the others
                    failed.add(name)
                    tqdm.write(f"failed: {name}: {error}", file=sys.stderr)
    return {case: timed for case, timed in windows.items() if case[0] not in failed}, failed


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


def table(windows: Mapping[Case, Sequence[Window]]) -> pandas.DataFrame:
    """Rows of loaders.csv, one per case: images/s with its 95 % interval, and the ratio to PLAIN, paired by rounds."""
    rows = []
    for (name, cores), timed in windows.items():
        rate = run_interval(timed)
        row: list[object] = [cores, name, len(timed), rate.value, rate.low, rate.high]
        if plain := windows.get((PLAIN, cores)):
            own, other = (log_throughput([numpy.array([each]) for each in taken]) for taken in (timed, plain))
            found = ratio_of_rounds(own - other)
            row += [found.value, found.low, found.high]
        rows.append(row + [None] * (len(LOADERS_COLUMNS) - len(row)))
    return pandas.DataFrame(rows, columns=list(LOADERS_COLUMNS))
