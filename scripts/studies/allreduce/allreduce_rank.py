"""One rank of `make bench-allreduce`: times all-reduces of many sizes through one path, by turns with a bare loop.

    from scripts.studies.allreduce.allreduce_rank import main   # measure.py and predict/measure.py start it

A path is what a strategy sends a full bucket through. Every size is checked before it is timed. Times are means over
the ranks; rank 0 prints a row a size. gated: a round waits for a line on stdin, and has no bare loop in it.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch

from benchmarks.common.system.gpus import usable_gpus
from scripts.studies.allreduce.analysis import sizes_to

TIMED_BYTES = 2**25  # of one size in one round, at least two calls and at most 50
LATE = timedelta(minutes=10)


@dataclasses.dataclass(frozen=True)
class Way:
    """A path that is set up. send: as a strategy does it, in place; bare: the plainest call that the library has."""

    rank: int
    ranks: int
    device: torch.device
    dtype: torch.dtype
    send: Callable[[torch.Tensor], object]
    bare: Callable[[torch.Tensor], object]


def by_torch(backend: str, dtype: torch.dtype = torch.float32) -> Way:
    """torch.distributed as DDP calls it: a sum that is started, and waited for."""
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meet = f"file://{os.environ['RENDEZVOUS_FILE']}"
    dist.init_process_group(backend, init_method=meet, rank=rank, world_size=ranks, timeout=LATE)
    send = lambda tensor: dist.all_reduce(tensor, async_op=True).wait()  # noqa: E731
    return Way(rank, ranks, device, dtype, send, dist.all_reduce)


def by_horovod() -> Way:
    """Horovod as its DistributedOptimizer calls it."""
    import horovod.torch as hvd

    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if usable_gpus() else torch.device("cpu")

    def send(tensor: torch.Tensor) -> None:
        hvd.synchronize(hvd.allreduce_async_(tensor, name=f"{tensor.dtype} {tensor.numel()}", op=hvd.Sum))

    def bare(tensor: torch.Tensor) -> None:
        hvd.allreduce_(tensor, name=f"bare {tensor.numel()}", op=hvd.Sum)  # without one, each call is new to all ranks

    return Way(hvd.rank(), hvd.size(), device, torch.float32, send, bare)


PATHS: dict[str, Callable[[], Way]] = {
    "gloo": lambda: by_torch("gloo"),
    "gloo, bf16": lambda: by_torch("gloo", torch.bfloat16),
    "nccl": lambda: by_torch("nccl"),
    "nccl, bf16": lambda: by_torch("nccl", torch.bfloat16),
    "horovod": by_horovod,
}


def num_wrong(way: Way, tensor: torch.Tensor) -> int:
    """Values of an all-reduce that are not the sum; small whole numbers, which bf16 holds exactly. Leaves zeros."""
    rows, pattern = tensor.view(-1, 256), (torch.arange(256, device=way.device) % 32).to(way.dtype)
    rows.copy_((pattern + way.rank).expand_as(rows))
    way.send(tensor)
    wrong = int((rows != pattern * way.ranks + way.ranks * (way.ranks - 1) // 2).sum())
    tensor.zero_()  # sums of zeros stay zeros, however often
    return wrong


def timed(way: Way, call: Callable, tensor: torch.Tensor, times: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, of one call; ranks start together."""
    way.send(torch.zeros(1, dtype=way.dtype, device=way.device))
    settle(way.device)
    began, cpu_began = time.perf_counter(), time.process_time()
    for _ in range(times):
        call(tensor)
    settle(way.device)
    return (time.perf_counter() - began) / times, (time.process_time() - cpu_began) / times


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sweep(way: Way, buffer: torch.Tensor, number: int, calls: dict[str, Callable]) -> None:
    """A round: all sizes up to the buffer's, in powers of four and the largest; rank 0 prints a row for each.

    calls: by what their columns begin with; the order turns from round to round.
    """
    item = buffer.element_size()
    for size in sizes_to(buffer.numel() * item):
        tensor = buffer[: size // item]
        wrong, times = num_wrong(way, tensor), max(2, min(50, TIMED_BYTES // size))
        found = {}
        for prefix, call in sorted(calls.items(), reverse=number % 2 == 1):
            found |= dict(zip((f"{prefix}seconds", f"{prefix}cpu_s"), timed(way, call, tensor, times), strict=True))
        means = torch.tensor([*found.values(), wrong], dtype=torch.float64, device=way.device)
        way.send(means)
        *values, wrong = (means / way.ranks).tolist()
        row = {"round": number, "ranks": way.ranks, "bytes": size, "calls": times}
        row |= dict(zip(found, values, strict=True)) | {"wrong": round(wrong * way.ranks)}
        if way.rank == 0:
            print("row:", json.dumps(row), flush=True)


def main() -> None:
    """One rank, of the words PATH ROUNDS LARGEST [gated]."""
    path, rounds, largest, gated = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["gated"]
    if "THREADS_PER_RANK" in os.environ:
        torch.set_num_threads(int(os.environ["THREADS_PER_RANK"]))
    way = PATHS[path]()
    buffer = torch.zeros(largest // way.dtype.itemsize, dtype=way.dtype, device=way.device)
    calls = {"": way.send} if gated else {"": way.send, "bare_": way.bare}
    for call in calls.values():
        call(buffer)  # pages and connections are there before a clock runs
    for number in range(rounds):
        if gated:
            print("ready:", flush=True)
            if not sys.stdin.readline():
                break
        sweep(way, buffer, number, calls)
    os._exit(0)  # process groups need no last word here, and Horovod's shutdown waits
