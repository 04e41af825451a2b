"""How many cores a device needs for loading: the curve over 1, 2, 4, ... workers, and what would need fewer.

    python -m scripts.studies.loaders.worker_counts --results results/latest
    python -m scripts.studies.loaders.worker_counts --images-per-s 3000 --config configs/imagenet-bench.yaml

The second half of `./bench study loader-limit`, whose loader.csv says what the device trains. Every other flag is a
configuration field; without such flags Make's variables count. Packed pixels are measured on a sample of images, packed
in a temporary folder, from memory: a disk that gives less is the limit then.
"""

import contextlib
import io
import itertools
import math
import os
import tempfile
from pathlib import Path

from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import DECODERS, import_problem, resolve_decoder
from benchmarks.common.listing import list_images
from benchmarks.common.rows import read_table
from scripts.data import pack
from scripts.options.data_options import PackOptions
from scripts.results.formatting import format_interval, format_number, plural
from scripts.results.intervals import Estimate, run_interval
from scripts.studies.loaders.loader_limit import TRAINING
from scripts.studies.loaders.loader_variants import Batches, own_loader
from scripts.studies.loaders.measure import Window, describe_machine, time_window

ROUNDS, WINDOW_S = 3, 1.0
NUM_PACKED_IMAGES = 256  # that are packed to measure packed images

Curve = dict[int, Estimate]
"""By the number of workers, each with a core of its own: images/s of them together."""


def main(results: Path, config: Config) -> None:
    print("\n".join(describe_needed_cores(config, training_images_per_s(results))))


def training_images_per_s(results: Path) -> float:
    """images/s of training alone. Raises UserError where nobody has measured it."""
    rows = read_table(results, "loader")
    alone = rows[rows.what == TRAINING]
    if alone.empty:
        raise UserError(f"{results} does not say what a device trains; run ./bench study loader-limit")
    return float(alone.images.sum() / alone.seconds.sum())


def describe_needed_cores(config: Config, images_per_s: float) -> list[str]:
    """Lines for a person: the machine, its curve, the cores that a device at images_per_s needs, and what else would
    do."""
    cores = sorted(os.sched_getaffinity(0))
    numbers = sorted({min(2**power, len(cores)) for power in range(len(cores).bit_length() + 1)})
    with tempfile.TemporaryDirectory() as temporary:
        mine, others = loaders_to_time(config, Path(temporary))
        jobs = [("", mine, number) for number in numbers] + [(name, other, 1) for name, other in others.items()]
        windows: dict[tuple[str, int], list[Window]] = {(name, number): [] for name, _, number in jobs}
        with tqdm(total=ROUNDS * len(jobs), desc="workers", disable=None, leave=False) as bar:
            for _ in range(ROUNDS):
                for name, batches, number in jobs:
                    windows[name, number].append(time_window(batches, config, cores[:number], WINDOW_S))
                    bar.update()
    curve = {number: run_interval(windows["", number]) for number in numbers}
    lines = [f"loading on {describe_machine()}, load average {os.getloadavg()[0]:.1f}:"]
    lines += [f"{plural(number, 'core')}: {_rate(estimate)}" for number, estimate in curve.items()]
    lines.append(needed_cores_text(curve, images_per_s))
    one_core = curve[1].value
    for name in others:
        estimate = run_interval(windows[name, 1])
        cores_needed = math.ceil(cores_for(curve, images_per_s * one_core / estimate.value))
        times = estimate.value / one_core
        lines.append(f"{name}: {_rate(estimate)} a core, {times:.2f} times as fast: {plural(cores_needed, 'core')}")
    return lines


def loaders_to_time(config: Config, temporary: Path) -> tuple[Batches, dict[str, Batches]]:
    """The loader of `config`, and by name what could take its place: other decoders, and packed pixels."""
    if config.loader == "packed":
        return own_loader(), {}
    decoder = resolve_decoder(config)
    others = {
        f"decoder {name}": own_loader(decoder=name) for name in DECODERS if name != decoder and not import_problem(name)
    }
    data = sample(config, temporary)
    os.environ["PACKED"] = str(data / "packed")  # before it is packed: the user's own PACKED holds another data set
    with contextlib.redirect_stdout(io.StringIO()):
        pack.main(PackOptions(str(data)))
    others["packed, full size (./bench data pack)"] = own_loader(loader="packed", pack="full", data=str(data))
    return own_loader(decoder=decoder), others


def sample(config: Config, temporary: Path) -> Path:
    """A data folder with links to NUM_PACKED_IMAGES images of train/, evenly spaced, and to one of them as val/."""
    data, images = temporary / "sample", list_images(Path(config.data) / "train")
    step = max(1, len(images) // NUM_PACKED_IMAGES)
    for part, numbers in (("train", range(0, len(images), step)), ("val", range(1))):
        (data / part / "images").mkdir(parents=True)
        for number in numbers:
            path = Path(images.path(number)).resolve()
            (data / part / "images" / f"{number}{path.suffix}").symlink_to(path)
    return data


def cores_for(curve: Curve, images_per_s: float) -> float:
    """Cores that load images_per_s: between two measured numbers in a straight line, beyond the last in proportion."""
    points = [(0, 0.0), *((number, estimate.value) for number, estimate in curve.items())]
    for (before, slower), (number, faster) in itertools.pairwise(points):
        if images_per_s <= faster:
            return before + (number - before) * (images_per_s - slower) / (faster - slower)
    return points[-1][0] * images_per_s / points[-1][1]


def needed_cores_text(curve: Curve, images_per_s: float) -> str:
    """One sentence: how many cores a device at images_per_s needs, and whether so many were measured."""
    cores, most = math.ceil(cores_for(curve, images_per_s)), max(curve)
    beyond = f"; beyond the {most} measured here, in proportion" if cores > most else ""
    needed = plural(cores, "core")
    return f"a device that trains {format_number(images_per_s)} images/s needs {needed} to load for it{beyond}"


def _rate(estimate: Estimate) -> str:
    bounds = format_interval(estimate.low, estimate.high, format_number)
    over_what = "; [a, b]: 95 % interval over these" if bounds else ""
    return (
        f"{format_number(estimate.value)} {bounds}".rstrip()
        + f" images/s (n = {plural(estimate.num_windows, 'window')}{over_what})"
    )
