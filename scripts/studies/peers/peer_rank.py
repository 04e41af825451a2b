"""One rank of a launch that `make peers` times: of the suite's own loop, or of a peer's. The first prints each window.

from scripts.studies.peers.peer_rank import rank
"""

import dataclasses
import functools
import importlib
import json
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks import ddp
from benchmarks.common.config.config import Config, load_config, resolve_global_batch
from benchmarks.common.dist.devices import set_kernels
from benchmarks.common.system import machine
from benchmarks.common.train.clock import Clock
from benchmarks.common.train.engine import fit

CPU = torch.device("cpu")


class Printing(Clock):
    """A clock whose windows rank 0 prints: {"images": ..., "seconds": ...}."""

    def __init__(self, device: torch.device, global_batch: int):
        super().__init__(device)
        self.global_batch = global_batch
        self.reports = (os.environ.get("RANK") or os.environ["HOROVOD_RANK"]) == "0"

    def stop(self):
        seconds, step_ms = super().stop()
        if self.reports:
            told = {"images": self.global_batch * len(step_ms), "seconds": seconds}
            print("window:", json.dumps(told), flush=True)
        return seconds, step_ms


def rank(module: str, flags: list[str]) -> None:
    """module: of scripts.studies.peers, with `train`; empty: the suite's loop. flags: of the configuration."""
    config = load_config(flags)
    ranks = int(os.environ.get("WORLD_SIZE") or os.environ["HOROVOD_SIZE"])
    config = dataclasses.replace(
        resolve_global_batch(config, ranks),
        workers=machine.resolve_num_workers(config.workers, torch.cuda.is_available()),
    )
    make_clock = functools.partial(Printing, global_batch=config.global_batch)
    if not module:
        ddp.main(config, fit=functools.partial(fit, make_clock=make_clock))
        return
    set_kernels(config)
    steps = steps_of(module, config)
    next(steps)  # from here on its process group and its device are there
    if "WORLD_SIZE" in os.environ and ranks > 1 and not (dist.is_initialized() and dist.get_world_size() == ranks):
        raise RuntimeError("its ranks have not met: each trains by itself")
    clock = make_clock(torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU)
    for _ in range(config.warmup_steps):
        next(steps)
    for _ in range(config.windows):
        clock.start()
        for _ in range(config.window_steps):
            next(steps)
            clock.tick()
        clock.stop()
    os._exit(0)  # in the middle of an epoch nothing is there to be shut down in order


def steps_of(module: str, config: Config) -> Iterator[None]:
    """The peer's steps, at the configuration's settings.

    The process group is made here, by a store in a file, and the frameworks take it. The store of a group that a peer
    made would listen on every address of the machine.
    """
    shared = "arch image_size global_batch workers momentum weight_decay lr".split()
    options = {name: getattr(config, name) for name in shared} | {"folder": f"{config.data}/train"}
    train = importlib.import_module(f"scripts.studies.peers.{module}").train
    if "WORLD_SIZE" not in os.environ:  # by horovodrun
        return train(**options)
    on_gpu, local_rank = torch.cuda.is_available(), int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(local_rank)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(os.environ["RENDEZVOUS_FILE"], world_size)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world_size)
    if module != "bare_ddp":
        return train(**options)
    return train(torch.device("cuda", local_rank) if on_gpu else CPU, **options)
