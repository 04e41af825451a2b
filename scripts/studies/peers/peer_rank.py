"""One rank of a launch that the study peers times: of the suite's loop, or of a peer's. Rank 0 prints each window."""

import dataclasses
import importlib
import json
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks import ddp
from benchmarks.common.config.config import Config, load_config, resolve_global_batch
from benchmarks.common.dist.devices import set_kernels
from benchmarks.common.dist.ranks import RankInfo, find_rank_info
from benchmarks.common.system import machine
from benchmarks.common.system.malloc import keep_freed_memory
from benchmarks.common.train.clock import Clock
from benchmarks.common.train.engine import fit
from scripts.studies.peers.loop_settings import LoopSettings

CPU = torch.device("cpu")


class PrintingClock(Clock):
    """A clock whose windows rank 0 prints: {"images": ..., "seconds": ...}."""

    def __init__(self, device: torch.device, global_batch: int, prints: bool):
        super().__init__(device)
        self.global_batch, self.prints = global_batch, prints

    def stop(self) -> tuple[float, list[float]]:
        seconds, step_ms = super().stop()
        if self.prints:
            window = {"images": self.global_batch * len(step_ms), "seconds": seconds}
            print("window:", json.dumps(window), flush=True)
        return seconds, step_ms


def rank(module: str, flags: list[str]) -> None:
    """module: of scripts.studies.peers, with `train`; empty: the suite's loop. flags: of the configuration."""
    config = load_config(flags)
    rank_info = find_rank_info()
    config = dataclasses.replace(
        resolve_global_batch(config, rank_info.world_size),
        workers=machine.resolve_num_workers(config.workers, torch.cuda.is_available()),
    )
    prints = rank_info.rank == 0
    if not module:
        strategy = ddp.build(config)
        fit(strategy, PrintingClock(strategy.context.device, config.global_batch, prints))
        return
    set_kernels(config)
    if not torch.cuda.is_available():
        keep_freed_memory()  # as a rank of the suite does: the ratio is of the loops
    steps = steps_of(module, config, rank_info)
    next(steps)  # from here on its process group and its device are there
    if rank_info.launcher == "torchrun" and rank_info.world_size > 1 and not in_one_group(rank_info.world_size):
        raise RuntimeError("its ranks have no process group in common: each trains by itself")
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU
    clock = PrintingClock(device, config.global_batch, prints)
    for _ in range(config.warmup_steps):
        next(steps)
    for _ in range(config.windows):
        clock.start()
        for _ in range(config.window_steps):
            next(steps)
            clock.tick()
        clock.stop()
    os._exit(0)  # in the middle of an epoch nothing is there to be shut down in order


def in_one_group(world_size: int) -> bool:
    return dist.is_initialized() and dist.get_world_size() == world_size


def steps_of(module: str, config: Config, rank_info: RankInfo) -> Iterator[None]:
    """The peer's steps, at the configuration's settings.

    The process group is made here, by a store in a file, and the frameworks take it. The store of a group that a peer
    made would listen on all interfaces of the machine.
    """
    shared = "arch image_size global_batch workers momentum weight_decay lr".split()
    settings = LoopSettings(folder=f"{config.data}/train", **{name: getattr(config, name) for name in shared})
    train = importlib.import_module(f"scripts.studies.peers.{module}").train
    if rank_info.launcher == "horovodrun":
        return train(settings)
    on_gpu, local_rank = torch.cuda.is_available(), rank_info.local_rank
    if on_gpu:
        torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        store=torch._C._distributed_c10d.FileStore(rank_info.rendezvous_file, rank_info.world_size),
        rank=rank_info.rank,
        world_size=rank_info.world_size,
    )
    if module != "bare_ddp":
        return train(settings)
    return train(torch.device("cuda", local_rank) if on_gpu else CPU, settings)
