"""DistributedDataParallel under Slurm: srun starts one task a GPU on every node, and each task is one rank.

srun --nodes 2 --ntasks-per-node 2 --kill-on-bad-exit=1 python -m benchmarks.slurm --config configs/smoke.yaml
"""

import os

import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import (
    RankContext,
    all_reduce_sum,
    ddp_options,
    file_store,
    group_options,
    start_rank,
)
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded
from benchmarks.common.train.phase_recorder import exchange_of, no_exchange


def rendezvous_options(config: Config, context: RankContext) -> dict:
    """By what the ranks find each other: a file with a name of this job's step alone, or the first node's address."""
    job = f"{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_STEP_ID']}-{os.environ.get('SLURM_RESTART_COUNT', 0)}"
    if config.rendezvous == "file":
        path = os.path.abspath(os.path.join(os.environ.get("RUN_DIR", "."), f"rendezvous-{job}"))
        return {"store": file_store(path, config, context)}
    port = 20000 + int(os.environ["SLURM_JOB_ID"]) * 16 % 10000 + int(os.environ["SLURM_STEP_ID"]) % 16
    return {"init_method": f"tcp://{os.environ.get('MASTER_ADDR', os.environ['SLURM_LAUNCH_NODE_IPADDR'])}:{port}"}


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, find_rank_info("srun"))  # slurm: by SLURM_PROCID, SLURM_LOCALID and others
    dist.init_process_group(
        **rendezvous_options(config, context),
        rank=context.rank,
        world_size=context.world_size,
        **group_options(config, context),
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
