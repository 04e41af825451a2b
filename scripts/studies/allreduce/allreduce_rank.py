"""One rank of `./bench study allreduce`: times all-reduces of many sizes, as DDP calls them.

Every size is checked first. Times are means over the ranks; rank 0 prints rows, as JSON.
"""

import json
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.common.config import Config
from benchmarks.common.rank import Rank, prepare, synchronize
from scripts.studies.allreduce.analysis import DTYPES, ROW, message_sizes

BYTES_PER_SIZE = 2**25  # that one round sends of one size, in 2 to 50 calls
AllReduce = Callable[[torch.Tensor], object]


def all_reduce(tensor: torch.Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()


def num_wrong_values(rank: int, num_ranks: int, tensor: torch.Tensor, exchange: AllReduce = all_reduce) -> int:
    """How many are not the sum. The summands are whole numbers up to 4: bf16 represents the sums over up to 64 ranks,
    and all parts of them, exactly. tensor: of a multiple of 256 elements; it holds zeros afterwards."""
    rows, pattern = tensor.view(-1, 256), (torch.arange(256, device=tensor.device) % 4).to(tensor.dtype)
    rows.copy_((pattern + rank % 2).expand_as(rows))
    exchange(tensor)
    num_wrong = int((rows != pattern * num_ranks + num_ranks // 2).sum())
    tensor.zero_()  # sums of zeros stay zeros, however often
    return num_wrong


def time_round(rank: Rank, buffer: torch.Tensor, round_number: int) -> None:
    for size in message_sizes(buffer.numel() * buffer.element_size()):
        tensor = buffer[: size // buffer.element_size()]
        num_wrong = num_wrong_values(rank.rank, rank.world_size, tensor)
        num_calls = max(2, min(50, BYTES_PER_SIZE // size))
        dist.barrier()
        synchronize(rank.device)
        began_s = time.perf_counter()
        for _ in range(num_calls):
            all_reduce(tensor)
        synchronize(rank.device)
        seconds = (time.perf_counter() - began_s) / num_calls
        sums = torch.tensor([seconds, num_wrong], dtype=torch.float64, device=rank.device)
        all_reduce(sums)
        row: dict[str, float] = {"round": round_number, "ranks": rank.world_size, "bytes": size, "calls": num_calls}
        row |= {"seconds": float(sums[0]) / rank.world_size, "wrong": round(float(sums[1]))}
        if rank.reports:
            print(ROW, json.dumps(row), flush=True)


def main() -> None:
    """argv: element type, number of rounds, largest size in bytes."""
    dtype, num_rounds, largest = getattr(torch, DTYPES[sys.argv[1]]), int(sys.argv[2]), int(sys.argv[3])
    rank = Rank.from_env("torchrun")
    prepare(Config(), rank)
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    dist.init_process_group(rank.ddp_backend, rank.init_method, device_id=rank.device_id)
    buffer = torch.zeros(largest // dtype.itemsize, dtype=dtype, device=rank.device)
    all_reduce(buffer)  # memory pages and connections exist before anything is timed
    for round_number in range(num_rounds):
        time_round(rank, buffer, round_number)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
