"""DistributedDataParallel without a launcher: torch.multiprocessing.spawn starts one process a GPU.

NPROC=2 python -m benchmarks.ddp_spawn --config configs/smoke.yaml
"""

import tempfile

import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, ddp_options, group_options, start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import RankInfo, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system import machine
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded
from benchmarks.common.train.phase_recorder import exchange_of, no_exchange


def main(config: Config, fit=fit) -> None:
    num_ranks = machine.num_ranks()
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/rendezvous"  # ddp_spawn: a fresh file, where a fixed port would collide
        # When a rank fails, mp.spawn unpickles a file of a name that was free: in /tmp any user could have made it.
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            mp.spawn(start, (num_ranks, meeting, config, fit), nprocs=num_ranks)  # ddp_spawn: calls start(rank, *args)
        finally:
            tempfile.tempdir = before


def start(rank: int, num_ranks: int, meeting: str, config: Config, fit) -> None:
    guarded(lambda: train_rank(RankInfo(rank, rank, num_ranks, launcher="spawn"), meeting, config, fit), rank)


def train_rank(place: RankInfo, meeting: str, config: Config, fit) -> None:
    config, context = start_rank(config, place)
    dist.init_process_group(
        init_method=meeting, rank=context.rank, world_size=context.world_size, **group_options(config, context)
    )
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    net = build_model(config, len(train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids, **ddp_options(config))
    optimizer = build_optimizer(config, net)

    def step(images, target):
        optimizer.zero_grad()
        output = model(images)
        loss = cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    fit(
        config,
        context,
        model=net,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(num_shards=context.world_size),
        reduce=all_reduce_sum,
        without_exchange=lambda: no_exchange(model),
        exchange=exchange_of(model),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
    )
    dist.destroy_process_group()


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1)


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__)))
