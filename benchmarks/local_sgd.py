"""Local SGD: ranks train by themselves and average their weights every few steps; in groups, as DDP does.

torchrun --standalone --nproc-per-node 4 -m benchmarks.local_sgd --local-period 8  # listens on every address
"""

import copy

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, fill, flatten, group_options, start_rank, sync_buffers
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system.errors import UserError
from benchmarks.common.train.checkpoint import load_whole_state
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, find_rank_info("torchrun"))
    if context.world_size % config.local_group:
        raise UserError(f"local_group {config.local_group} does not divide {context.world_size} ranks; change one")
    dist.init_process_group(**group_options(config, context))
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    net = build_model(config, len(train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    group, _ = dist.new_subgroups(config.local_group)  # local_sgd: by default of one rank, which hears nobody
    model = DistributedDataParallel(net, device_ids, process_group=group)
    average, done = copy.deepcopy(net).eval(), {"steps": 0}  # local_sgd: evaluated and saved in place of net
    optimizer = build_optimizer(config, net)

    def step(images, target):
        optimizer.zero_grad()
        output = model(images)
        loss = cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        done["steps"] += 1
        if done["steps"] % config.local_period == 0:  # local_sgd: weights; momentum stays each rank's own
            average_into(net)
        return loss.detach(), output.detach()

    def average_into(model):
        flat = flatten([*net.parameters()], context.device)
        fill([*model.parameters()], all_reduce_sum(flat) / context.world_size)

    def share():  # local_sgd: training goes on from each rank's own weights
        average_into(average)
        fill([*average.buffers()], flatten([*net.buffers()], context.device))
        sync_buffers(average, context, all_reduce_sum)

    def own():  # local_sgd: what ranks hold differently
        moving = [each["momentum_buffer"] for each in optimizer.state.values() if config.momentum]
        return [*net.parameters(), *net.buffers(), *moving]

    def state():
        flat = flatten(own(), context.device)
        ranks = [torch.empty_like(flat) for _ in range(context.world_size)] if context.rank == 0 else None
        dist.gather(flat, ranks)
        return {"model": average.state_dict(), "optimizer": optimizer.state_dict(), "ranks": ranks} | done

    def load(saved):
        load_whole_state(net, optimizer, saved)
        if len(ranks := saved.get("ranks", [])) == context.world_size:  # local_sgd: inside a period, each rank its own
            fill(own(), ranks[context.rank].to(context.device))
        done["steps"] = saved.get("steps", 0)

    fit(
        config,
        context,
        model=net,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(context.world_size, period=config.local_period, group=config.local_group),
        reduce=all_reduce_sum,
        exchange=lambda: average_into(average),  # local_sgd: one average, which comes once a period
        predict=average,
        share=share,
        state=state,
        load=load,
    )
    dist.destroy_process_group()


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=2)  # and the average


if __name__ == "__main__":
    guarded(lambda: main(load_config(description=__doc__)))
