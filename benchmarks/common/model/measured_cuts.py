"""Where to cut the model into stages: by the measured time of each block, for `cut: auto`.

Each block trains on a few micro-batches on the rank's own device, and the largest stage's sum of times is made as small
as it can be. So do PipeDream (arXiv:1806.03377, section 3.2) and torchgpipe (arXiv:2004.09910, balance_by_time). All
ranks measure at the same time, for they share a CPU's memory in training, too; the times of rank 0 decide.
"""

import copy
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import Half
from benchmarks.common.data.loaders import MEMORY_FORMATS
from benchmarks.common.dist.devices import RankContext, synchronize
from benchmarks.common.model.cuts import balanced_cuts
from benchmarks.common.model.model import autocast_forward
from benchmarks.common.model.stages import blocks_of, find_cuts
from benchmarks.common.store.recorded_cuts import read_cuts, record_cuts
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.errors import UserError

BUDGET_S = 1.0  # of the timed passes; torchgpipe's timeout, too
MIN_PASSES, MAX_PASSES = 3, 20


def choose_cuts(config: Config, context: RankContext, net: nn.Module, num_stages: int, num_images: int) -> list[int]:
    """Blocks before each cut into num_stages: the same on every rank, and for `auto` in every run of a set.

    config.cut is a number, or `estimate`, which find_cuts explains. With `auto` the set's recorded cut is taken; where
    it has none, or without a set, the cut is measured, which takes about a second, and recorded. net stays as it is,
    as does the state of torch's random numbers. num_images: of a micro-batch. Every rank calls it at once, in the
    default process group where there are several. Raises UserError as find_cuts and read_cuts do, and for a recorded
    cut that the model does not have.
    """
    estimated = find_cuts(config, net, num_stages, num_images)  # refuses what no cut can be
    if num_stages == 1 or (isinstance(config.cut, int) and config.cut > 0):
        return estimated
    folder = RunFolder.current() if context.rank == 0 else None
    requested: Half = folder.settings()["asked"] if folder else {}
    recorded = read_cuts(folder.results, requested) if folder and requested else []
    check_cuts(recorded, config, num_stages, len(blocks_of(net)))
    cuts = broadcast(recorded or [0] * (num_stages - 1), context)
    if cuts[0]:
        return cuts
    if config.cut != "auto":
        return estimated
    block_s = measure_block_s(config, context, blocks_of(net), num_images)
    cuts = balanced_cuts(block_s, num_stages)
    if context.rank == 0:
        block_ms = [1000 * seconds for seconds in block_s]
        if folder and requested:
            cuts = record_cuts(folder.results, requested, cuts, block_ms)
        shown = ", ".join(f"{ms:.1f}" for ms in block_ms)
        print(f"blocks before each cut: {', '.join(map(str, cuts))}; ms of each block: {shown}", flush=True)
    return broadcast(cuts, context)


def check_cuts(cuts: Sequence[int], config: Config, num_stages: int, num_blocks: int) -> None:
    """Raises UserError for recorded cuts that do not make num_stages of the model's blocks. [] is fine."""
    if cuts and (len(cuts) != num_stages - 1 or cuts[-1] >= num_blocks):
        raise UserError(
            f"the set's recorded cut {', '.join(map(str, cuts))} is none of {config.arch}'s {num_blocks} blocks into "
            f"{num_stages} stages; remove cuts.json from the set, and the next run measures its cut anew"
        )


def broadcast(numbers: Sequence[int], context: RankContext) -> list[int]:
    """Rank 0's numbers on every rank, which all have as many."""
    if context.world_size == 1:
        return [*numbers]
    message = torch.tensor(numbers, dtype=torch.int64, device=context.device)
    dist.broadcast(message, src=0)
    return message.tolist()


def measure_block_s(
    config: Config,
    context: RankContext,
    blocks: Sequence[nn.Module],
    num_images: int,
    now: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds that each block takes to train on a micro-batch, forward and backward: the median of several passes.

    The blocks take turns, so that each finds the caches as the blocks before leave them. Each goes back at once, so
    that one block's activations are all that is kept. Gradients add up from pass to pass, as those of micro-batches do.
    What is trained are copies.
    """
    copies = [autocast_forward(config, nn.Sequential(copy.deepcopy(block)), float32_output=False) for block in blocks]
    generator = torch.Generator().manual_seed(config.seed)  # the default one is training's
    images = torch.randn(num_images, 3, config.image_size, config.image_size, generator=generator)
    images = images.to(context.device, memory_format=MEMORY_FORMATS[config.memory_format])

    def one_pass() -> list[float]:
        seconds, activation = [], images
        for number, block in enumerate(copies):
            activation = activation.detach().requires_grad_(number > 0)
            synchronize(context.device)
            began = now()
            activation = block(activation)
            activation.backward(torch.ones_like(activation))
            synchronize(context.device)
            seconds.append(now() - began)
        return seconds

    first = sum(one_pass())  # kernels are chosen and memory is taken in it
    fit_in = int(min(MAX_PASSES, max(MIN_PASSES, BUDGET_S / max(first, 1e-9))))
    (num_passes,) = broadcast([fit_in], context)  # the same on all: SyncBatchNorm exchanges within a pass
    passes = torch.tensor([one_pass() for _ in range(num_passes)], dtype=torch.float64)
    return passes.median(dim=0).values.tolist()
