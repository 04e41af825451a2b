"""DistributedDataParallel and ZeRO's first stage: each rank keeps the momentum of its share of the weights only.

torchrun --standalone --nproc-per-node 2 -m benchmarks.zero1 --config configs/smoke.yaml  # listens on every address
"""

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
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
    config, context = start_rank(config, find_rank_info("torchrun"))
    dist.init_process_group(**group_options(config, context))
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    net = build_model(config, len(train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(net, device_ids, **ddp_options(config))
    plain = build_optimizer(config, net)
    optimizer = ZeroRedundancyOptimizer(net.parameters(), torch.optim.SGD, **plain.defaults)  # zero1: updates its share

    def step(images, target):
        optimizer.zero_grad()
        output = model(images)
        loss = cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def state():  # zero1: every rank sends what it keeps to rank 0, which alone has the whole then, and writes it
        kept = {}  # not by consolidate_state_dict, which unpickles whatever comes through the ranks' open ports
        for number, parameter in enumerate(net.parameters() if config.momentum else ()):
            message, own = torch.zeros(parameter.shape, device=context.device), optimizer.optim.state.get(parameter, {})
            if own.get("momentum_buffer") is not None:
                message.copy_(own["momentum_buffer"])
            dist.reduce(message, 0)  # of one rank's and zeros
            kept[number] = {"momentum_buffer": torch.empty_like(parameter).copy_(message)}
        whole = {"state": kept, "param_groups": torch.optim.Optimizer.state_dict(optimizer)["param_groups"]}
        return {"model": net.state_dict(), "optimizer": whole if context.rank == 0 else {}}

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
        state=state,
        without_exchange=lambda: no_exchange(model),
        exchange=exchange_of(model),
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
    )
    dist.destroy_process_group()


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1)


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__)))
