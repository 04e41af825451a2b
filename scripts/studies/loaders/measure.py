"""How fast are loaders, and is loading the limit of training?

    ./bench study loaders --data /path/to/imagenet

First images/s of one core and of all cores, without training: this suite's loader with each decoder and with packed
images, beside torchvision's, in interleaved windows, each in a process of its own. Then the strategy trains on all
ranks with one synthetic batch and with images, in turn: what training loses by loading is the loader's. Writes
loaders.csv, sweeps.json, rows and charts of a result set.
"""

import dataclasses
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy
import pandas
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.config import PREFETCHED_PER_WORKER, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from scripts.charts.bars import Bar, bar_chart
from scripts.charts.figures import save_chart
from scripts.data.check import check_image_folder
from scripts.results.formatting import plural, text_table
from scripts.results.intervals import log_throughput, ratio_of_rounds, run_interval
from scripts.results.result_set import load_set
from scripts.runner import preflight
from scripts.runner.request import read_request
from scripts.shared import source_version
from scripts.studies.loaders.limit import FILE, NO_LOADING, PLAIN, describe_limit, known, rates_cells
from scripts.studies.loaders.variants import Batches, find_loaders
from scripts.studies.options import LoadersOptions, SweepOptions
from scripts.studies.sweep import plan as sweep

BATCH, WARMUP_IMAGES = 32, 64

Window = tuple[float, float]
"""Images and seconds."""
Case = tuple[str, int]
"""The name of a loader, and the number of cores."""


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
    print(rates_table(rates))
    about = {"machine": machine.processor_name(), "commit": source_version.commit() or ""}
    write_text_atomically(results / FILE, rates.assign(image_size=config.image_size, **about).to_csv(index=False))
    code = train_with_and_without(options, flags, config, results)
    found = load_set(results)
    save_chart(loaders_chart(rates, config), results / "charts", "loaders")
    print("\n" + "\n".join(describe_limit(found)))
    return code or int(failed)


# --- loaders alone ------------------------------------------------------------------------------------------------


def time_loaders(config: Config, options: LoadersOptions) -> tuple[pandas.DataFrame, bool]:
    """(a row for each loader on one core and on all, whether a loader failed). The order alternates between rounds."""
    alone = dataclasses.replace(config, global_batch=BATCH, batch_per_device=0)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary:
        loaders = find_loaders(alone, Path(temporary), options.only.split())
        cases = [(name, number) for number in dict.fromkeys((1, len(cores))) for name in loaders]
        windows: dict[Case, list[Window]] = {case: [] for case in cases}
        failed: set[str] = set()
        rounds = [cases[:: -1 if number % 2 else 1] for number in range(options.repeats)]
        for name, number in tqdm([case for each in rounds for case in each], "windows", disable=None, leave=False):
            if name not in failed:
                try:
                    windows[name, number].append(time_window(loaders[name], alone, cores[:number], options.window_s))
                except UserError as error:  # the failure of one loader must not end the measurement of the others
                    failed.add(name)
                    tqdm.write(f"failed: {name}: {error}", file=sys.stderr)
    return rates_of({case: timed for case, timed in windows.items() if case[0] not in failed}), bool(failed)


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


def rates_of(windows: Mapping[Case, Sequence[Window]]) -> pandas.DataFrame:
    """Rows of loaders.csv, one a case: images/s with its 95 % interval, and the ratio to PLAIN, paired by rounds."""
    rows = []
    for (name, cores), timed in windows.items():
        rate = run_interval(timed)
        row = {"loader": name, "cores": cores, "n": len(timed), "images_per_s": rate.value}
        row |= {"low": rate.low, "high": rate.high, "per_core": rate.value / cores}
        if plain := windows.get((PLAIN, cores)):
            own, other = (log_throughput([numpy.array([each]) for each in taken]) for taken in (timed, plain))
            over = ratio_of_rounds(own - other)
            row |= {"times_plain": over.value, "times_low": over.low, "times_high": over.high}
        rows.append(row)
    return pandas.DataFrame(rows)


def rates_table(rates: pandas.DataFrame) -> str:
    return text_table(rates_cells(rates), left_aligned=(0, 2, 4))


def loaders_chart(rates: pandas.DataFrame, config: Config) -> Figure:
    bars = [
        Bar(
            f"{row['loader']}, {plural(row['cores'], 'core')}",
            row["images_per_s"],
            known(row["low"]),
            known(row["high"]),
            style="{:,.0f}",
            is_reference=row["loader"] == PLAIN,
        )
        for row in rates.to_dict("records")
    ]
    about = f"{config.image_size} px, {machine.processor_name()}, {plural(machine.num_cores(), 'core')}"
    return bar_chart("Loaders, without training", about, bars, "images/s", "images/s [95 %]")


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
