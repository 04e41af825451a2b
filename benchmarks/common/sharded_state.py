"""Checkpoints of a model whose tensors are sharded over the ranks (DTensors): written whole, loaded in shards.

TrainingState(save=partial(sharded_state, model, optimizer), load=partial(load_sharded_state, model, optimizer))
"""

from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor


def sharded_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds, in the form that unsharded strategies write. A collective."""
    states = optimizer.state_dict()
    whole = {key: {name: _whole(value) for name, value in of.items()} for key, of in states["state"].items()}
    weights = {name: _whole(tensor) for name, tensor in model.state_dict().items()}
    return {"model": weights, "optimizer": states | {"state": whole}}


@torch.no_grad()
def load_sharded_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a checkpoint: each rank takes its shards of the whole. Raises KeyError for another model's. A collective."""
    parameters, states = [*model.parameters()], saved["optimizer"]["state"]
    for name, tensor in model.state_dict().items():
        tensor.copy_(_shard_of(saved["model"][name], tensor))
    shards = {
        key: {name: _shard_of(value, parameters[key]) for name, value in of.items()} for key, of in states.items()
    }
    optimizer.load_state_dict(saved["optimizer"] | {"state": shards})


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _shard_of(whole: Any, tensor: torch.Tensor) -> Any:
    if not (isinstance(tensor, DTensor) and isinstance(whole, torch.Tensor) and whole.shape == tensor.shape):
        return whole
    return distribute_tensor(whole.to(tensor.device), tensor.device_mesh, tensor.placements)
