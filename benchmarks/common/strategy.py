"""What a script's `build` returns, and how a step is divided. Needs no torch.

strategy = ddp.build(config)
strategy.step(*next(iter(strategy.train)))
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from benchmarks.common.config import Config

if typing.TYPE_CHECKING:
    import torch

    from benchmarks.common.loader import Loader
    from benchmarks.common.rank import Rank


AllReduce = Callable[["torch.Tensor"], "torch.Tensor"]
"""Returns the sum over all ranks on each of them."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a step is divided. Each script has a function `layout(config, num_devices) -> Layout`.

    STORED_FIELDS, for the proof's reference:
    num_shards: equal parts of a global batch whose gradients are averaged; BatchNorm sees one at a time.
    num_stages: consecutive parts of the model.
    num_microbatches: parts of a shard, one after the other; BatchNorm sees one at a time.
    split_size: images of such a part, with one loss of all; 0: equal parts, each with its own loss.
    compression: the type in which gradients travel.
    period: steps between two averages of the weights; 0: gradients are averaged instead.
    group: with a period, shards whose gradients are averaged at every step all the same.
    exact: the update is the reference's to the last bit on two CPU ranks.

    For the forecast of memory:
    num_stage_devices: that hold the stages of a shard; 0: one for each.
    one_f_one_b: as many micro-batches keep activations as there are stages from a device's own on.
    num_gradient_copies: such as DDP's buckets.
    num_weight_shards: devices that share weights, gradients and optimizer state.
    one_process_loads: the images of all shards arrive on the first device.
    whole_model_on_each: each device evaluates its share of every batch.
    autocast: of convolutions and activations; empty: config.precision's.
    """

    num_shards: int = 1
    num_stages: int = 1
    num_microbatches: int = 1
    split_size: int = 0
    compression: str = "none"
    period: int = 0
    group: int = 1
    exact: bool = True

    num_stage_devices: int = 0
    one_f_one_b: bool = False
    num_gradient_copies: int = 0
    num_weight_shards: int = 1
    one_process_loads: bool = False
    whole_model_on_each: bool = False
    autocast: Literal["", "bf16", "fp16"] = ""

    @property
    def devices_per_shard(self) -> int:
        return self.num_stage_devices or self.num_stages

    @property
    def num_devices(self) -> int:
        return self.num_shards * self.devices_per_shard


STORED_FIELDS = (
    "num_shards",
    "num_stages",
    "num_microbatches",
    "split_size",
    "compression",
    "period",
    "group",
    "exact",
)


def resolve_layout(config: Config, layout: Layout) -> Layout:
    """With the changes that options make."""
    if config.norm == "sync":  # statistics, and so gradients, are of the whole batch
        layout = dataclasses.replace(layout, num_shards=1)
    # fused kernels round once where others round twice
    return dataclasses.replace(layout, exact=layout.exact and not (config.compile or config.fused))


class HasState(Protocol):
    """Such as a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """In place, where there is a group."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


@dataclasses.dataclass(frozen=True)
class Strategy:
    """What one rank trains with.

    config: as `prepare` returns it. model: without a wrapper.
    step: one optimizer step on this rank's images, (N, 3, H, W), and target, int64 (N,); returns the detached loss and
    scores, (N, classes), or Nones. criterion: the module that it calls for the loss.

    predict: images to scores, called equally often on every rank; None: the model.
    without_exchange: a context for a step that exchanges no gradients; None where these cannot be left out.
    waits_within_phases: no mark can tell where ranks wait for each other.
    sync_state: gives all ranks what they hold differently, before it is evaluated or saved; None: rank 0's buffers.
    save_state, load_state: `model`, under torchvision's names, and `optimizer`, whole. Called on every rank. None: all
    ranks hold the same.
    extra_state: more to save, by name.
    columns: more resolved settings. None empties a column of runs.csv.
    """

    config: Config
    rank: Rank
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    train: Loader
    val: Loader
    criterion: torch.nn.Module
    step: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor | None, torch.Tensor | None]]
    layout: Layout
    predict: Callable[[torch.Tensor], torch.Tensor] | None = None
    all_reduce: AllReduce = all_reduce_sum
    without_exchange: Callable[[], AbstractContextManager[None]] | None = None
    waits_within_phases: bool = False
    sync_state: Callable[[], None] | None = None
    save_state: Callable[[], dict[str, Any]] | None = None
    load_state: Callable[[dict[str, Any]], None] | None = None
    extra_state: Mapping[str, HasState] = dataclasses.field(default_factory=dict)
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
