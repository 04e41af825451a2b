"""FSDP2 or HSDP: ranks shard weights, gradients and momentum, gather weights by block, and reduce-scatter gradients.

torchrun --standalone --nproc-per-node 4 -m benchmarks.fsdp --config configs/smoke.yaml --shard-ranks 2
"""

import dataclasses
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.common.architectures import ARCHITECTURES
from benchmarks.common.config import Config, load_config
from benchmarks.common.engine import fit
from benchmarks.common.errors import UserError
from benchmarks.common.exits import run_and_exit
from benchmarks.common.loader import build_loaders
from benchmarks.common.model import autocast_forward, build_model, optimizer_of, residual_blocks
from benchmarks.common.rank import Rank, prepare
from benchmarks.common.strategy import Layout, Strategy


def build(config: Config) -> Strategy:
    rank = Rank.from_env("torchrun")
    config = prepare(config, rank)  # fsdp: one seed for all ranks, since FSDP sends no weights
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    shard_ranks = config.shard_ranks or rank.world_size
    if rank.world_size % shard_ranks:
        raise UserError(f"shard_ranks {shard_ranks} does not divide {rank.world_size} ranks; change one of them")
    timeout = timedelta(seconds=config.timeout_s)
    dist.init_process_group(rank.backend, rank.init_method, timeout, device_id=rank.device_id)
    train, val = build_loaders(config, rank)
    # fsdp: FSDP casts weights itself, and shards contiguous ones only
    fp32_config = dataclasses.replace(config, precision="fp32", memory_format="contiguous")
    model = build_model(fp32_config, train.num_classes).to(rank.device)
    if not casts_weights(config):
        model = autocast_forward(config, model)  # fsdp: autocast, as in other strategies
    if config.shard_ranks:  # fsdp: HSDP's two dimensions
        shape, names = (rank.world_size // shard_ranks, shard_ranks), ("replicate", "shard")
        mesh = init_device_mesh(rank.device.type, shape, mesh_dim_names=names)
    else:
        mesh = init_device_mesh(rank.device.type, (shard_ranks,), mesh_dim_names=("shard",))
    shard(model, config, mesh)
    optimizer_class, options = optimizer_of(config)
    options["foreach"] = True  # fsdp: by default torch updates DTensors one by one
    optimizer = optimizer_class(model.parameters(), **options)  # fsdp: updates this rank's shards
    criterion = nn.CrossEntropyLoss()

    def step(images: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        output = model(images)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        return loss.detach(), output.detach()

    def save_state() -> dict[str, Any]:  # fsdp: rank 0 gets every tensor whole
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        weights, state = get_state_dict(model, optimizer, options=options)  # fsdp: {} on other ranks
        return {"model": weights, "optimizer": numbered(state) if state else {}}

    def load_state(saved: dict[str, Any]) -> None:  # fsdp: each rank takes its shards of the whole
        options = StateDictOptions(full_state_dict=True)
        state = named(saved["optimizer"], [name for name, _ in model.named_parameters()])
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=state, options=options)

    return Strategy(
        config,
        rank,
        model,
        optimizer,
        train,
        val,
        criterion,
        step,
        layout(config, rank.world_size),
        waits_within_phases=True,  # fsdp: in its hooks; for timing alone
        save_state=save_state,
        load_state=load_state,
        columns={"shard_ranks": shard_ranks},
    )


def casts_weights(config: Config) -> bool:
    """Before it gathers them, to bf16. Models whose LayerNorm must stay float32 compute in autocast instead."""
    return ARCHITECTURES[config.arch].normalisation == "BatchNorm"


def shard(model: nn.Module, config: Config, mesh: DeviceMesh) -> None:
    """Inside the mesh's rows; between rows the model is replicated. In bf16 BatchNorms are sharded apart from their
    block, and keep float32 weights: they refuse bf16 ones beside float32 statistics."""
    in_bf16 = config.precision == "bf16" and casts_weights(config)
    param_dtype, reduce_dtype = (torch.bfloat16, torch.float32) if in_bf16 else (None, None)
    block_policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
    norm_policy = MixedPrecisionPolicy(cast_forward_inputs=False)
    root_policy = dataclasses.replace(block_policy, output_dtype=torch.float32)
    other_norms = batch_norms(model) if in_bf16 else []
    for block in residual_blocks(model).values():
        norms = batch_norms(block) if in_bf16 else []
        if norms:  # fsdp: all norms of a block are gathered at once
            fully_shard(norms, mesh=mesh, mp_policy=norm_policy)
        fully_shard(block, mesh=mesh, mp_policy=block_policy)
        other_norms = [norm for norm in other_norms if norm not in norms]
    for norm in other_norms:
        fully_shard(norm, mesh=mesh, mp_policy=norm_policy)
    fully_shard(model, mesh=mesh, mp_policy=root_policy)


def batch_norms(module: nn.Module) -> list[nn.Module]:
    return [each for each in module.modules() if isinstance(each, _BatchNorm)]


def numbered(state: dict[str, Any]) -> dict[str, Any]:
    """A state of get_state_dict with numbers instead of names, as in the checkpoints of other scripts."""
    numbers = {name: number for number, name in enumerate(state["param_groups"][0]["params"])}
    groups = [group | {"params": [*numbers.values()]} for group in state["param_groups"]]
    return {"state": {numbers[name]: of_weight for name, of_weight in state["state"].items()}, "param_groups": groups}


def named(state: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The inverse of `numbered`."""
    groups = [group | {"params": names} for group in state["param_groups"]]
    return {"state": {names[number]: of_weight for number, of_weight in state["state"].items()}, "param_groups": groups}


def layout(config: Config, num_devices: int) -> Layout:
    return Layout(
        num_shards=num_devices,
        num_weight_shards=config.shard_ranks or num_devices,
        exact=config.memory_format == "contiguous",
    )


def main() -> None:
    # fused: torch has no fused SGD for DTensors
    # compile: FSDP2 gathers weights between blocks, so that each would have to be compiled by itself
    fit(build(load_config(description=__doc__, compile=(False,), fused=(False,))))
    dist.destroy_process_group()


if __name__ == "__main__":
    run_and_exit(main)
