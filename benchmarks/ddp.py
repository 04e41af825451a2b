"""DistributedDataParallel by torchrun: one process per GPU, gradients averaged while the backward pass runs.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp --config configs/smoke.yaml
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import ddp_options, find_rank_info, process_group_options, rank_zero_first, set_up_rank
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"))  # ddp: from RANK, LOCAL_RANK, WORLD_SIZE
    dist.init_process_group(**process_group_options(config, context))  # ddp: by RENDEZVOUS_FILE, else torchrun's store
    with rank_zero_first(context.rank, dist.barrier):  # ddp: rank 0 writes the index of images that the others read
        loaders = build_loaders(config, context)  # ddp: each rank reads its own shard of every global batch
    module = build_model(config, len(loaders.train.classes), context.device)
    device_ids = [context.local_rank] if context.device.type == "cuda" else None  # ddp: this rank's GPU
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))  # ddp: averages gradients in backward
    optimizer = build_optimizer(config, module)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    return Strategy(
        config,
        context,
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, context.world_size),  # ddp: a shard of the global batch for each rank
        communication=ddp_communication(model),  # ddp: with it the engine sums losses over ranks
        columns={"bucket_cap_mb": model.bucket_bytes_cap / 2**20},
        shut_down=dist.destroy_process_group,  # ddp: so that no rank exits while another still communicates
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, num_gradient_copies=1)


if __name__ == "__main__":
    run_and_exit(lambda: fit(build(load_config(description=__doc__))))
