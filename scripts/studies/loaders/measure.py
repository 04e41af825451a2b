"""How fast loaders are, side by side: ours, the bare loops that they could be at best, and those of other projects.

    python -m scripts.studies.loaders.measure --data data/imagenet-mini --out results/loaders

Images a second of one core and of all, without training: read, decoded, cropped at random to image_size, flipped and
put into batches of uint8. Ways take turns, round after round, each in a process of its own. A bare loop has its crops
drawn beforehand and makes no batches; what ours adds to it is told by cause, in CPU time. Peers that are not installed
are named with the words that install them.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pandas
import tyro
from tqdm import tqdm

from benchmarks.common.config.config import Config
from benchmarks.common.dist.devices import device_name
from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.machine import num_cores
from benchmarks.common.system.programs import run_program
from scripts.charts.figures import save_chart
from scripts.runner.measured_figures import origin
from scripts.runner.preflight import check_data
from scripts.stats.formatting import plural
from scripts.stats.intervals import run_interval, throughput_ratio
from scripts.studies.loaders import cpu_costs
from scripts.studies.loaders import loader_variants as ways
from scripts.studies.loaders.chart import loaders_chart

WARMUP_IMAGES = 64
PLAIN = "torchvision, Pillow"


@dataclasses.dataclass(frozen=True)
class Options:
    data: str = "data/imagenet-mini"
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    out: Path = Path("results/loaders")
    """Folder for loaders.csv, costs.csv and their chart."""
    image_size: int = 224
    """Pixels along each side."""
    rounds: int = 5
    """Windows of each way, at least 2."""
    window_s: float = 2.0
    """Seconds of a window."""
    turns: int = 20
    """Turns that the CPU time of an image is measured in, at least 6."""
    only: str = ""
    """Words; a way takes part if its name has one of them."""


def main(options: Options) -> int:
    cores = sorted(os.sched_getaffinity(0))
    if options.rounds < 2:
        raise UserError(f"rounds is {options.rounds}, but an interval needs at least 2")
    if options.turns < 6:
        raise UserError(f"turns is {options.turns}, but the interval of a median needs at least 6")
    check_data(options.data)
    with tempfile.TemporaryDirectory() as temporary:
        config = Config(data=options.data, image_size=options.image_size, global_batch=32)
        chosen = ways.installed(config, Path(temporary), options.only.split())
        cases = [(way, number) for number in dict.fromkeys((1, len(cores))) for way in chosen]
        taken: dict = {(way.name, number): [] for way, number in cases}
        failed: set[str] = set()
        with tqdm(total=len(cases) * options.rounds, desc="windows", disable=None, leave=False) as bar:
            for number_of_round in range(options.rounds):
                for way, number in cases[:: -1 if number_of_round % 2 else 1]:
                    bar.update()
                    if way.name in failed:
                        continue
                    try:
                        taken[way.name, number].append(window(way.batches, config, cores[:number], options.window_s))
                    except UserError as error:  # another project's loader must not cost us ours
                        failed.add(way.name)
                        tqdm.write(f"failed: {way.name}: {error}", file=sys.stderr)
        costs = cpu_time(config, [way.name for way in chosen], options.turns)
    machine = machine_here()
    bare = {way.name: way.bare for way in chosen}
    rates = table({case: windows for case, windows in taken.items() if case[0] not in failed}, bare)
    print(f"{machine}, load average {os.getloadavg()[0]:.1f}")
    print(rates.to_string(index=False, float_format=lambda value: f"{value:.2f}"))
    print("\nwhat our loader spends, CPU microseconds an image; bare_share: of the bare loop, up to this cause:")
    print(costs.to_string(index=False, float_format=lambda value: f"{value:.3g}"))
    options.out.mkdir(parents=True, exist_ok=True)
    about = origin() | {"machine": machine}
    rates = rates.assign(image_size=options.image_size, **about)
    write_text_atomically(options.out / "loaders.csv", rates.to_csv(index=False))
    write_text_atomically(options.out / "costs.csv", costs.assign(**about).to_csv(index=False))
    if len(costs) and len(rates):
        print("\nwritten:", *save_chart(loaders_chart(rates, costs), options.out, "loaders"), sep="\n  ")
    return int(bool(failed))


def cpu_time(config: Config, names: list[str], turns: int) -> pandas.DataFrame:
    """loader_costs.costs of our loaders that took part and have a bare loop."""
    import torch

    torch.set_num_threads(1)  # as in the windows, and in a loader's workers
    fast = {
        "ours, nvimgcodec": dataclasses.replace(config, decoder="nvimgcodec"),
        "ours, packed full": dataclasses.replace(config, loader="packed", pack="full"),
    }
    found = [cpu_costs.costs(one, turns) for name, one in fast.items() if name in names]
    return pandas.concat(found) if found else pandas.DataFrame()


def machine_here() -> str:
    """The machine that a rate is of: its processor, the cores that this process may use, its system."""
    import torch

    return f"{device_name(torch.device('cpu'))}, {plural(num_cores(), 'core')}, {platform.platform()}"


def window(batches: Callable, config: Config, cores: list[int], seconds: float) -> tuple[int, float]:
    """Images and seconds of a window, in a process bound to these cores. Raises UserError where it fails."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_timed, args=(theirs, batches, config, cores, seconds))
    process.start()
    theirs.close()
    try:
        found = mine.recv()
    except EOFError:
        found = "it ended without a word"
    process.join()
    if isinstance(found, str):
        raise UserError(found)
    return found


def _timed(pipe, batches: Callable, config: Config, cores: list[int], seconds: float) -> None:
    import torch

    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    try:
        with contextlib.closing(batches(config, len(cores))) as numbers:
            pipe.send(_count(numbers, seconds, len(cores)))
    except Exception as error:  # shown as one line by the parent
        pipe.send(f"{type(error).__name__}: {error}")


def _count(numbers: Iterator[int], seconds: float, cores: int) -> tuple[int, float]:
    warm, images = 0, 0
    while warm < WARMUP_IMAGES * (1 + 2 * cores):  # and what workers had ready before the clock started
        warm += next(numbers)
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        images += next(numbers)
    return images, took


def table(taken: dict, bare: dict[str, tuple[str, ...]]) -> pandas.DataFrame:
    """A row a case: images a second with its 95 % interval, times the plain torchvision pipeline's, and times the
    better of its bare loops'; each ratio with its interval, paired by rounds from five on."""
    rows = []
    for (name, cores), windows in taken.items():
        rate = run_interval(windows)
        row = {"cores": cores, "loader": name, "n": len(windows), "images_per_s": rate.value}
        row |= {"low": rate.low, "high": rate.high}
        loops = [taken[loop, cores] for loop in bare.get(name, ()) if (loop, cores) in taken]
        best = max(loops, key=lambda loop: run_interval(loop).value, default=None)
        row |= times("times_plain", "times", windows, taken.get((PLAIN, cores)))
        rows.append(row | times("times_bare", "times_bare", windows, best))
    columns = ["cores", "loader", "n", "images_per_s", "low", "high", "times_plain", "times_low", "times_high"]
    return pandas.DataFrame(rows, columns=[*columns, "times_bare", "times_bare_low", "times_bare_high"])


def times(name: str, prefix: str, windows: list, others: list | None) -> dict[str, float | None]:
    """The ratio of images a second and its interval, as columns; none without the others."""
    if others is None:
        return {}
    found = throughput_ratio(
        [numpy.array([one]) for one in windows], [numpy.array([one]) for one in others], paired=True
    )
    return {name: found.value, f"{prefix}_low": found.low, f"{prefix}_high": found.high}


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(Options, description=__doc__)))
