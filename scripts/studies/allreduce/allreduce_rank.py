"""One rank of `./bench study allreduce`: times all-reduces of many sizes over one path, interleaved with a bare loop.

measure.py starts it. A path is the call by which a strategy sends a full gradient bucket. Every
size is checked before it is timed. Times are means over the ranks; rank 0 prints a row per size.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import torch

from benchmarks.common.machine import usable_gpus
from scripts.studies.allreduce.analysis import message_sizes

BYTES_PER_SIZE = 2**25  # that one round sends of one size, in 2 to 50 calls
TIMEOUT = timedelta(minutes=10)

Call = Callable[[torch.Tensor], object]


@dataclasses.dataclass(frozen=True)
class AllReducePath:
    """A path that is ready to use. all_reduce: as a strategy calls it, in place. bare_all_reduce: the simplest call
    that the library has."""

    rank: int
    num_ranks: int
    device: torch.device
    dtype: torch.dtype
    all_reduce: Call
    bare_all_reduce: Call


def torch_path(backend: str, dtype: torch.dtype = torch.float32) -> AllReducePath:
    """torch.distributed as DDP calls it: an asynchronous sum, then a wait."""
    import torch.distributed as dist

    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Not by file://PATH: a # or ? in the path would end it.
    store = dist.FileStore(os.environ["RENDEZVOUS_FILE"], num_ranks)  # type: ignore[attr-defined]
    store.set_timeout(TIMEOUT)
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=TIMEOUT)

    def all_reduce(tensor: torch.Tensor) -> None:
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()

    return AllReducePath(rank, num_ranks, device, dtype, all_reduce, dist.all_reduce)


def horovod_path() -> AllReducePath:
    """Horovod as its DistributedOptimizer calls it."""
    import horovod.torch as hvd

    hvd.init()
    device = torch.device("cuda", hvd.local_rank()) if usable_gpus() else torch.device("cpu")

    def all_reduce(tensor: torch.Tensor) -> None:
        hvd.synchronize(hvd.allreduce_async_(tensor, name=f"{tensor.dtype} {tensor.numel()}", op=hvd.Sum))

    def bare_all_reduce(tensor: torch.Tensor) -> None:
        # Without a name, each call is a new tensor that all ranks have to negotiate.
        hvd.allreduce_(tensor, name=f"bare {tensor.numel()}", op=hvd.Sum)

    return AllReducePath(hvd.rank(), hvd.size(), device, torch.float32, all_reduce, bare_all_reduce)


PATHS: dict[str, Callable[[], AllReducePath]] = {
    "gloo": lambda: torch_path("gloo"),
    "gloo, bf16": lambda: torch_path("gloo", torch.bfloat16),
    "nccl": lambda: torch_path("nccl"),
    "nccl, bf16": lambda: torch_path("nccl", torch.bfloat16),
    "horovod": horovod_path,
}


def num_wrong_values(path: AllReducePath, tensor: torch.Tensor) -> int:
    """How many values of an all-reduce are not the sum. The summands are whole numbers up to 4: bf16 represents the
    sums over up to 64 ranks, and all parts of them, exactly. tensor: its number of elements is a multiple of 256; it
    holds zeros afterwards."""
    rows, pattern = tensor.view(-1, 256), (torch.arange(256, device=path.device) % 4).to(path.dtype)
    rows.copy_((pattern + path.rank % 2).expand_as(rows))
    path.all_reduce(tensor)
    num_wrong = int((rows != pattern * path.num_ranks + path.num_ranks // 2).sum())
    tensor.zero_()  # sums of zeros stay zeros, however often
    return num_wrong


def time_call(path: AllReducePath, call: Call, tensor: torch.Tensor, num_calls: int) -> tuple[float, float]:
    """(wall-clock seconds, CPU seconds of this process) of one call. All ranks start together."""
    path.all_reduce(torch.zeros(1, dtype=path.dtype, device=path.device))
    synchronize(path.device)
    began_s, cpu_began_s = time.perf_counter(), time.process_time()
    for _ in range(num_calls):
        call(tensor)
    synchronize(path.device)
    return (time.perf_counter() - began_s) / num_calls, (time.process_time() - cpu_began_s) / num_calls


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def time_round(path: AllReducePath, buffer: torch.Tensor, round_number: int, calls: dict[str, Call]) -> None:
    """Time all sizes up to the buffer's once. Rank 0 prints a row for each.

    calls: what is timed, by the prefix of its columns. Their order alternates between rounds.
    """
    element_bytes = buffer.element_size()
    for size in message_sizes(buffer.numel() * element_bytes):
        tensor = buffer[: size // element_bytes]
        num_wrong, num_calls = num_wrong_values(path, tensor), max(2, min(50, BYTES_PER_SIZE // size))
        times: dict[str, float] = {}
        for prefix, call in sorted(calls.items(), reverse=round_number % 2 == 1):
            times[f"{prefix}seconds"], times[f"{prefix}cpu_s"] = time_call(path, call, tensor, num_calls)
        sums = torch.tensor([*times.values(), num_wrong], dtype=torch.float64, device=path.device)
        path.all_reduce(sums)
        *means, mean_wrong = (sums / path.num_ranks).tolist()
        row = {"round": round_number, "ranks": path.num_ranks, "bytes": size, "calls": num_calls}
        row |= dict(zip(times, means, strict=True)) | {"wrong": round(mean_wrong * path.num_ranks)}
        if path.rank == 0:
            print("row:", json.dumps(row), flush=True)


def main() -> None:
    """One rank. The words on the command line are: path, number of rounds, largest size in bytes."""
    name, num_rounds, largest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if "THREADS_PER_RANK" in os.environ:
        torch.set_num_threads(int(os.environ["THREADS_PER_RANK"]))
    path = PATHS[name]()
    buffer = torch.zeros(largest // path.dtype.itemsize, dtype=path.dtype, device=path.device)
    calls = {"": path.all_reduce, "bare_": path.bare_all_reduce}
    for call in calls.values():
        call(buffer)  # memory pages and connections exist before anything is timed
    for round_number in range(num_rounds):
        time_round(path, buffer, round_number, calls)
    os._exit(0)  # process groups need no shutdown here, and Horovod's waits
