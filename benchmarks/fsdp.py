"""FSDP2: weights, gradients and momentum are sharded over the ranks, and gathered block by block; or HSDP.

torchrun --standalone --nproc-per-node 4 -m benchmarks.fsdp --shard-ranks 2  # in pairs; listens on every address
"""

import dataclasses
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy

from benchmarks.common.config.config import Config, load_config
from benchmarks.common.config.settings import Shape
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import all_reduce_sum, group_options, start_rank
from benchmarks.common.dist.layout import Split
from benchmarks.common.dist.ranks import find_rank_info, rank_first
from benchmarks.common.dist.sharded_state import load_sharded_state, sharded_state
from benchmarks.common.model.model import build_model, build_optimizer
from benchmarks.common.system.errors import UserError
from benchmarks.common.train.engine import fit
from benchmarks.common.train.exit_codes import guarded


def main(config: Config, fit=fit) -> None:
    config, context = start_rank(config, find_rank_info("torchrun"))
    shard_ranks = config.shard_ranks or context.world_size
    if context.world_size % shard_ranks:
        raise UserError(f"shard_ranks {shard_ranks} does not divide {context.world_size} ranks; change one of them")
    dist.init_process_group(**group_options(config, context))
    with rank_first(context.rank, dist.barrier):
        train, val = build_loaders(config, context)
    # fsdp: it has casts of its own, and shards contiguous weights only; images come in the layout that was asked
    plain = dataclasses.replace(config, precision="fp32", memory_format="contiguous")
    model = build_model(plain, len(train.classes), context.device)
    shape, names = (
        (context.world_size // shard_ranks, shard_ranks),
        ("replicate", "shard"),
    )  # fsdp: HSDP's two dimensions
    if not config.shard_ranks:
        shape, names = shape[1:], names[1:]
    shard(model, config, init_device_mesh(context.device.type, shape, mesh_dim_names=names))
    optimizer = build_optimizer(config, model)  # fsdp: of this rank's shards

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
        model=model,
        optimizer=optimizer,
        train=train,
        val=val,
        step=step,
        shape=Shape(num_shards=context.world_size, exact=config.memory_format == "contiguous"),
        reduce=all_reduce_sum,
        state=partial(sharded_state, model, optimizer),  # fsdp: every rank takes part in putting each tensor together
        load=partial(load_sharded_state, model, optimizer),
        columns={"shard_ranks": shard_ranks},
    )
    dist.destroy_process_group()


def shard(model, config: Config, mesh) -> None:
    """Shard inside the mesh's rows and replicate between them; BatchNorm by itself, as bf16 weights beside its float32
    statistics are refused: it takes the activations as they come."""
    in_bf16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if config.precision == "bf16" else {}
    norms = MixedPrecisionPolicy(cast_forward_inputs=False)
    for module in model.modules():
        if in_bf16 and isinstance(module, nn.BatchNorm2d):
            fully_shard(module, mesh=mesh, mp_policy=norms)
    for block in (block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer):
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(**in_bf16))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**in_bf16, output_dtype=torch.float32))


def split(config: Config, num_devices: int) -> Split:  # for the memory forecast, which has no word for sharded weights
    return Split(num_shards=num_devices)


if __name__ == "__main__":
    # DTensor, which its weights are, has no rule for SGD's fused update
    guarded(lambda: main(load_config(description=__doc__, compile=(False,), fused=(False,))))
