"""torch.compile and DistributedDataParallel: the model's own operations fused, its graph split at DDP's buckets.

torchrun --standalone --nproc-per-node 2 -m benchmarks.ddp_compile --config configs/smoke.yaml
"""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.common.communication import ddp_communication
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import prepare_compiler
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import (
    ddp_options,
    find_rank_info,
    process_group_options,
    rank_zero_first,
    set_up_rank,
    synchronize,
)
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    config, context = set_up_rank(config, find_rank_info("torchrun"))
    prepare_compiler(on_gpu=context.device.type == "cuda")
    dist.init_process_group(**process_group_options(config, context))
    with rank_zero_first(context.rank, dist.barrier):
        loaders = build_loaders(config, context)
    module = build_model(config, len(loaders.train.classes), context.device)
    module.compile()  # ddp_compile: the module itself, so that its tensors keep their names
    device_ids = [context.local_rank] if context.device.type == "cuda" else None
    model = DistributedDataParallel(module, device_ids, **ddp_options(config))
    optimizer = build_optimizer(config, module)
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def time_compilation() -> float:
        """Compile the model by a first forward and backward pass, on images of zeros. Returns the seconds of both.

        BatchNorm's buffers are restored.
        """
        before = {name: buffer.clone() for name, buffer in module.named_buffers()}
        images = torch.zeros(config.global_batch // context.world_size, 3, config.image_size, config.image_size)
        images = images.to(context.device, memory_format=loaders.train.memory_format)
        target = torch.zeros(len(images), dtype=torch.long, device=context.device)
        began_s = time.perf_counter()
        loss = criterion(model(images), target)
        loss.backward()
        synchronize(context.device)
        for name, buffer in module.named_buffers():
            buffer.data.copy_(before[name])
        return time.perf_counter() - began_s

    compile_s = time_compilation()  # ddp_compile: before the first step, so that none of them holds it

    return Strategy(
        config,
        context,
        model=module,
        optimizer=optimizer,
        loaders=loaders,
        criterion=criterion,
        step=step,
        layout=layout(config, context.world_size),
        communication=ddp_communication(model),
        predict=module.forward,  # ddp_compile: validation has batches of other sizes, each of which would be compiled
        columns={
            "bucket_cap_mb": model.bucket_bytes_cap / 2**20,
            "compile_s": compile_s,
            "optimize_ddp": str(torch._dynamo.config.optimize_ddp),  # ddp_compile: the graph is split at the buckets
        },
        shut_down=dist.destroy_process_group,
    )


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(num_shards=num_devices, exact=False, num_gradient_copies=1)


if __name__ == "__main__":
    # its own compile() of the module would overwrite that of --compile, and of --cuda-graphs with it
    run_and_exit(lambda: fit(build(load_config(description=__doc__, compile=(False,), cuda_graphs=(False,)))))
