"""Is the loader the limit? Times the loader alone, training alone, and both together, in turn, in several launches.

    ./bench study loader-limit --config configs/smoke.yaml --results results/latest

Every other flag is a configuration field, as of benchmarks.single, whose step, loader and threads are timed: one
rank's. Training alone repeats one batch that is on the device already. With --results the windows replace those of the
set's loader.csv. Images a second a core: over the CPU seconds that this process and its loader workers spent.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.columns import TABLES
from benchmarks.common.config import PREFETCHED_PER_WORKER, Config, load_config, resolve_global_batch
from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from benchmarks.common.rows import lock_tables, read_table, table_text
from scripts.results.formatting import format_interval, format_setting
from scripts.runner import preflight
from scripts.runner.round_order import run_order
from scripts.shared.forward_signals import die_with_parent
from scripts.studies.hardware import hardware_here, hardware_of_set, why_not_here
from scripts.studies.loaders.loader_limit import ALONE, BOTH, TRAINING, WINDOW_KINDS, describe_limit, throughput_by_kind

if TYPE_CHECKING:
    import psutil

LAUNCHES = 5  # processes, one after the other
ROUNDS, WINDOW_S = 3, 0.8  # windows of each kind in a launch, and how long one should last
WARMUP_STEPS = 3


def main(config: Config, results: Path | None) -> None:
    if results:
        check_alike(config, results)
    if config.loader == "synthetic":
        raise UserError("loader synthetic reads nothing; leave --loader out")
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    for launch in tqdm(range(1, LAUNCHES + 1), desc="launches", disable=None, leave=False):
        with concurrent.futures.ProcessPoolExecutor(1, spawn, die_with_parent()) as process:
            rows += process.submit(measure, config, launch).result()
    table = pandas.DataFrame(rows)
    rows = [row | {"verdict": describe_limit(table)} for row in rows]
    for kind, throughput in throughput_by_kind(table).items():
        of_a_core = table[table.what == kind].images_per_s_per_core.mean()
        bounds = format_interval(throughput.low, throughput.high, "{:.1f}".format)
        print(
            f"{kind:<15} {throughput.value:9.1f} images/s {bounds}  "
            f"{of_a_core:9.1f} images/s a core  (n = {throughput.num_runs} launches, {throughput.num_windows} windows)"
        )
    print(describe_limit(table))
    if results:
        with lock_tables(results):
            write_text_atomically(results / "loader.csv", table_text(TABLES["loader"], rows))


def check_alike(config: Config, results: Path) -> None:
    """Raises UserError where the set's runs trained something else: the verdict would not be about them."""
    runs = read_table(results, "runs")
    for name in ("arch", "image_size", "global_batch"):
        found = set(runs[runs.status == "ok"][name])
        if found and getattr(config, name) not in found:
            raise UserError(
                f"{results} has {name} {', '.join(map(format_setting, found))}, "
                f"and this would time {getattr(config, name)}; give the configuration and the flags of the set"
            )


def measure(config: Config, launch: int) -> list[dict[str, Any]]:
    """Rows of loader.csv of one launch, a window each."""
    import psutil

    from benchmarks import single
    from benchmarks.common.rank import synchronize

    strategy = single.build(config)
    device, step = strategy.rank.device, strategy.step
    num_workers = machine.resolve_num_workers(config.workers, device.type == "cuda")
    config = dataclasses.replace(config, workers=num_workers)
    batches, process = endless(strategy.train), psutil.Process()
    batch_on_device = next(batches)
    work_by_kind: dict[str, Callable[[], object]] = {
        ALONE: lambda: next(batches),
        TRAINING: lambda: step(*batch_on_device),
        BOTH: lambda: step(*next(batches)),
    }

    def window(work: Callable, num_steps: int) -> tuple[float, float]:
        """Seconds and CPU seconds of num_steps steps."""
        synchronize(device)
        began = time.perf_counter(), cpu_s(process)
        for _ in range(num_steps):
            work()
        synchronize(device)
        return time.perf_counter() - began[0], cpu_s(process) - began[1]

    rows: list[dict[str, Any]] = []
    num_steps: dict[str, int] = {}
    read_ahead = 1 + config.prefetch + PREFETCHED_PER_WORKER * num_workers
    for number in range(ROUNDS + 1):
        for kind in kinds_in_order(launch, number):
            work = work_by_kind[kind]
            # Untimed: batches that the workers prepared meanwhile are used up, or prepared while training goes on. The
            # same number before each kind, or training alone would begin earlier in its place than both together.
            window(work, read_ahead)
            if number:
                measured = row_of(kind, number, num_steps[kind], *window(work, num_steps[kind]), config)
                rows.append(measured | {"run_id": f"loader_verdict-{launch}"})
            else:
                seconds, _ = window(work, WARMUP_STEPS)
                num_steps[kind] = max(WARMUP_STEPS, round(WINDOW_S / seconds * WARMUP_STEPS))
    return rows


def kinds_in_order(launch: int, number: int) -> list[str]:
    """The kinds of windows in the order in which round `number` of a launch times them; round 0 warms up.

    In a launch each kind has each place once, and every second launch has its rounds backwards, so that a steady fall
    of the clock is no cost of loading.
    """
    return [WINDOW_KINDS[index] for index in run_order(len(WINDOW_KINDS), (launch - 1) * ROUNDS + number)]


def row_of(
    kind: str, number: int, num_steps: int, seconds: float, cpu_seconds: float, config: Config
) -> dict[str, Any]:
    images = num_steps * config.global_batch
    return {
        "what": kind,
        "window": number,
        "images_per_s": images / seconds,
        "images_per_s_per_core": images / cpu_seconds,
        "num_windows": 1,
        "images": images,
        "seconds": seconds,
        "workers": config.workers,
        "image_size": config.image_size,
        "global_batch": config.global_batch,
        "arch": config.arch,
    }


def endless(train: Any) -> Iterator[Any]:
    """Batches of one epoch after the other."""
    epoch = 0
    while True:
        train.set_epoch(epoch)
        yield from train
        epoch += 1


def cpu_s(process: "psutil.Process") -> float:
    """CPU seconds of the process and of its children, also of those that have ended."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    times_of_process = process.cpu_times()
    return (
        sum(one.user + one.system for one in times) + times_of_process.children_user + times_of_process.children_system
    )


def measure_set(results: Path | None, flags: Sequence[str]) -> None:
    """Measure with the configuration of these flags. Raises UserError for no result set."""
    if results and not results.is_dir():
        raise UserError(f"{results} is no result set; start ./bench run first, or leave --results out")
    if results and (why := preflight.why_not_writable(results)):
        raise UserError(why)
    if results and (why := why_not_here(hardware_of_set(results), hardware_here())):
        raise UserError(f"{results}: {why}; measure there, or leave --results out")
    os.environ.setdefault("THREADS_PER_RANK", str(machine.threads_per_rank(machine.num_ranks())))
    main(resolve_global_batch(load_config([*flags]), num_devices=1), results)
