"""NVIDIA Apex: amp's mixed precision and Apex's own DistributedDataParallel, as its documentation shows them.

torchrun --standalone --nproc-per-node 4 -m benchmarks.apex_ddp --opt-level O1  # listens on every address
"""

import contextlib
import dataclasses
import importlib.metadata

import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, group_options, start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system.errors import Unavailable, UserError
from benchmarks.common.system.gpus import usable_gpus
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded


def main(config: Config, fit=fit) -> None:
    if not usable_gpus():
        raise Unavailable("apex.amp refuses a model on the CPU; run it where there are NVIDIA GPUs, or use ddp_amp")
    try:
        from apex import amp
        from apex.parallel import DistributedDataParallel
    except ImportError as error:
        raise Unavailable(f"NVIDIA Apex cannot be imported ({error}); run scripts/setup/install_apex.sh") from None
    if config.precision == "fp16" and config.opt_level == "O0":
        raise UserError("opt_level O0 computes in fp32; use --opt-level O1 for fp16, or --precision fp32")
    if config.precision != "tf32":  # apex: amp casts by itself, to fp16, as opt_level says
        config = dataclasses.replace(config, precision="fp32")
    config, context = start_rank(config, find_rank_info("torchrun"))
    dist.init_process_group(**group_options(config, context))
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    net = build_model(config, len(train.classes), context.device)
    optimizer = build_optimizer(config, net)
    net, optimizer = amp.initialize(net, optimizer, opt_level=config.opt_level, verbosity=0)  # apex: before the wrap
    model = DistributedDataParallel(net)  # apex: finds its device itself, buckets by message size

    def step(images, target):
        optimizer.zero_grad()
        output = model(images)
        loss = F.cross_entropy(output, target)  # apex: by this name, under which amp patches it to work in fp32
        with amp.scale_loss(loss, optimizer) as scaled_loss:  # apex: small gradients survive fp16
            scaled_loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    @contextlib.contextmanager
    def without_exchange():
        model.disable_allreduce()
        yield
        model.enable_allreduce()

    fit(
        config,
        context,
        model=net,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(num_shards=context.world_size, exact=config.opt_level == "O0"),
        reduce=all_reduce_sum,
        extra={"amp": amp},
        without_exchange=without_exchange,
        columns={"precision": f"apex-{config.opt_level}", "apex": importlib.metadata.version("apex")},
    )
    dist.destroy_process_group()


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast
    return Split(num_shards=num_devices, copies=1, autocast="" if config.opt_level == "O0" else "fp16")


if __name__ == "__main__":
    allowed = {"precision": ("auto", "fp32", "tf32", "fp16"), "compile": (False,), "fused": (False,)}
    guarded(lambda: main(load_config(description=__doc__, **allowed)))
