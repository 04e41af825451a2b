"""DistributedDataParallel by torchrun: one process a GPU, gradients averaged while the backward pass runs.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp --config configs/smoke.yaml  # listens on every address
"""

import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, ddp_options, group_options, start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded
from benchmarks.common.train.phase_recorder import exchange_of, no_exchange


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, find_rank_info("torchrun"))  # ddp: from RANK, LOCAL_RANK, WORLD_SIZE
    dist.init_process_group(**group_options(config, context))  # ddp: the ranks meet where torchrun told them to
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)  # ddp: each rank reads its own shard of every global batch
    net = build_model(config, len(train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids, **ddp_options(config))  # ddp: averages
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
    dist.destroy_process_group()  # ddp: in order, so that no rank leaves while another still talks to it


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1)


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__)))
