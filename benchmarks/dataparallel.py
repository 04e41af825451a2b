"""nn.DataParallel: one process drives every GPU; it scatters each batch and gathers the outputs on GPU 0.

python -m benchmarks.dataparallel --config configs/smoke.yaml
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import RankInfo
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.gpus import usable_gpus
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded


def main(config: Config, fit=fit) -> None:
    num_gpus = usable_gpus()
    config, context = start_rank(config, RankInfo(), devices_per_rank=max(1, num_gpus))
    if num_gpus and config.global_batch % num_gpus:
        raise UserError(f"global_batch {config.global_batch} does not divide by {num_gpus} GPUs; change one of them")
    # dataparallel: one process decodes for all GPUs, so it gets the loader workers that as many ranks would have
    train, val = build_loaders(config, context, num_devices=max(1, num_gpus))
    net = build_model(config, len(train.classes), context.device)
    model = nn.DataParallel(net)  # dataparallel: copies the weights to all GPUs in every forward pass
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
        shape=Shape(num_shards=max(1, num_gpus)),
        # dataparallel: with fewer than two GPUs the wrapper passes through, and the row says so
        devices=[torch.device("cuda", number) for number in range(num_gpus)],
    )


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1, whole_batch=True)


if __name__ == "__main__":
    # SyncBatchNorm needs a process group; under DataParallel it would quietly be BatchNorm.
    guarded(lambda: main(load_config(description=__doc__, norm=("batch", "group"), compile=(False,))))
