"""Whether a run fits in the memory of the GPUs, before it starts; where it does not, why, and what would fit.

./bench forecast-memory --memory-gb 16 --num-devices 4 -- --config configs/v100x4.yaml
"""

import bisect
import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil
from tqdm import tqdm

from benchmarks.common import machine
from benchmarks.common.config import (
    NUM_IN_USE,
    PREFETCHED_PER_WORKER,
    Config,
    load_config,
    resolve_global_batch,
    resolve_memory_format,
    resolve_precision,
)
from benchmarks.common.errors import UserError
from benchmarks.common.strategy import Layout
from scripts.memory.options import MemoryOptions
from scripts.shared import gpus, strategy_list

RESERVED_BYTES = 1.5e9  # CUDA's context, cuDNN's workspaces, NCCL's buffers: an estimate

LayoutFunction = Callable[[Config, int], Layout]


class MemoryCase(NamedTuple):
    strategy: str
    config: Config
    num_ranks: int
    num_nodes: int


def why_runs_do_not_fit(cases: Sequence[MemoryCase], ranks_here: int, only_gpu_memory: bool = False) -> list[str]:
    """'' where a case fits, and where there are no GPUs or their memory is unknown. only_gpu_memory: not the host's,
    nor what would fit, which takes many forecasts."""
    memory_bytes = gpus.gpu_memory_bytes(ranks_here)
    if memory_bytes is None:
        return [""] * len(cases)
    free_bytes = math.inf if only_gpu_memory else psutil.virtual_memory().available
    # rounds differ in their seed
    cases = [case._replace(config=dataclasses.replace(case.config, seed=0)) for case in cases]
    reasons = {}
    for case in tqdm(dict.fromkeys(cases), desc="memory forecast", disable=None, leave=False):
        config = resolve_config(case.strategy, case.config, case.num_ranks)
        layout_of = layout_function(case.strategy)
        reasons[case] = why_not_fitting(
            config, layout_of, case.num_ranks, memory_bytes, free_bytes, case.num_nodes, not only_gpu_memory
        )
    return [reasons[case] for case in cases]


def largest_fitting_batch(cases: Sequence[MemoryCase], ranks_here: int) -> tuple[int, dict[MemoryCase, str]]:
    """Images on a device with which all cases fit, halved from theirs, and why cases do not fit with their own."""
    images = cases[0].config.batch_per_device
    reasons = why_runs_do_not_fit(cases, ranks_here, only_gpu_memory=True)
    refused = {case: why for case, why in zip(cases, reasons, strict=True) if why}
    left = [*refused]
    while left and images > 1:
        images //= 2
        smaller = [case._replace(config=dataclasses.replace(case.config, batch_per_device=images)) for case in left]
        reasons = why_runs_do_not_fit(smaller, ranks_here, only_gpu_memory=True)
        left = [case for case, why in zip(left, reasons, strict=True) if why]
    return images, refused


def resolve_config(strategy: str, config: Config, num_devices: int) -> Config:
    """As the run on GPUs has it; of settings that it refuses, only the global batch."""
    with contextlib.suppress(UserError):
        mixed = strategy_list.has_fact(strategy, "mixed_precision")
        precision = resolve_precision(config.precision, gpus.min_compute_capability() or gpus.NEWEST_CAPABILITY, mixed)
        memory_format = resolve_memory_format(config.memory_format, precision)
        layout = layout_function(strategy)(resolve_global_batch(config, num_devices), num_devices)
        config = resolve_global_batch(config, layout.num_devices)
        return dataclasses.replace(config, precision=precision, memory_format=memory_format)
    return resolve_global_batch(config, num_devices)


def layout_function(strategy: str) -> LayoutFunction:
    return strategy_list.load_script(strategy).layout


def loader_bytes(config: Config, layout: Layout, num_nodes: int = 1) -> float:
    """On the node that keeps most: waiting uint8 images, and page-locked copies."""
    if config.loader == "synthetic":
        return 0
    num_workers = machine.resolve_num_workers(config.workers, on_gpu=True)
    num_waiting = num_workers * PREFETCHED_PER_WORKER + NUM_IN_USE
    num_training = num_waiting + 1 + max(1, config.prefetch)
    reads_on_one_node = layout.whole_model_on_each  # a pipeline's first rank reads all images of training
    num_batches = num_waiting / num_nodes + num_training / (1 if reads_on_one_node else num_nodes)
    return num_batches * config.global_batch * 3 * config.image_size**2


def why_not_fitting(
    config: Config,
    layout_of: LayoutFunction,
    num_devices: int,
    memory_bytes: float,
    free_bytes: float,
    num_nodes: int = 1,
    with_remedy: bool = True,
) -> str:
    """And what would fit; '' where it fits, and where its settings are wrong. memory_bytes: of a GPU. free_bytes: of a
    node's host memory."""
    from scripts.memory.memory_forecast import peak_bytes

    try:
        layout = layout_of(config, num_devices)
        need = peak_bytes(config, layout)
    except UserError:
        return ""
    limit = memory_bytes - RESERVED_BYTES
    if need > limit:
        why = (
            f"needs {need / 1e9:.1f} GB on one device, of {memory_bytes / 1e9:.1f} less {RESERVED_BYTES / 1e9:.1f} for "
            "CUDA itself"
        )
        return f"{why}; {describe_remedy(config, layout, limit)}" if with_remedy else why
    waiting = loader_bytes(config, layout, num_nodes)
    if waiting > free_bytes:
        fit = int(machine.resolve_num_workers(config.workers, on_gpu=True) * free_bytes / waiting)
        return (
            f"the loaders need {waiting / 1e9:.1f} GB of memory for images that wait, and {free_bytes / 1e9:.1f} are "
            f"free; use --workers {fit} or a smaller batch"
        )
    return ""


def describe_remedy(config: Config, layout: Layout, limit_bytes: float) -> str:
    batch, option = largest_batch(config, layout, limit_bytes), "--global-batch"
    if config.batch_per_device:
        batch, option = batch_of_device(batch, layout), "--batch-per-device"
    return f"the largest batch that fits by this forecast is {option} {batch}" if batch else "no batch fits"


def largest_batch(config: Config, layout: Layout, limit_bytes: float) -> int:
    """0: none fits."""
    from scripts.memory.memory_forecast import peak_bytes

    unit = layout.num_shards * layout.num_microbatches

    def peak(units: int) -> int:
        with contextlib.suppress(UserError):  # too few images for a step
            return peak_bytes(dataclasses.replace(config, global_batch=units * unit), layout)
        return 0

    units = bisect.bisect(range(1, config.global_batch // unit + 1), limit_bytes, key=peak)
    return unit * units if units and peak(units) else 0


def batch_of_device(global_batch: int, layout: Layout) -> int:
    """At most global_batch on all devices; 0: none."""
    images = global_batch // layout.num_devices
    while images * layout.num_devices % (layout.num_shards * layout.num_microbatches):
        images -= 1
    return images


def main(options: MemoryOptions, flags: Sequence[str]) -> int:
    """flags: of the configuration."""
    from scripts.memory.memory_forecast import peak_bytes

    if not 0 < options.memory_gb < math.inf:
        raise UserError(f"--memory-gb is {options.memory_gb}, but must be gigabytes, such as 16.9")
    config, misfits = load_config([*flags]), 0
    for name in strategy_list.parse_strategies(options.strategies):
        resolved = resolve_config(name, config, options.num_devices)
        layout = layout_function(name)(resolved, options.num_devices)
        why_not = why_not_fitting(
            resolved, layout_function(name), options.num_devices, options.memory_gb * 1e9, math.inf
        )
        misfits += bool(why_not)
        need, waiting = peak_bytes(resolved, layout) / 1e9, loader_bytes(resolved, layout) / 1e9
        print(f"{name:<18} {need:6.1f} GB on a GPU, {waiting:5.1f} GB for the loaders; {why_not or 'fits'}", flush=True)
    return int(misfits > 0)
