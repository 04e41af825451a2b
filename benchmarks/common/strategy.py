"""A strategy as one object: what a script's `build(config)` returns, and what the engine, probes and studies drive.

strategy = ddp.build(config)
strategy.step(*next(iter(strategy.loaders.train)))
strategy.shut_down()
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch

from benchmarks.common.communication import Communication
from benchmarks.common.config import Config
from benchmarks.common.loader import Loaders
from benchmarks.common.rank import RankContext, sync_buffers


@dataclasses.dataclass(frozen=True)
class Layout:
    """The parts of a step, and where they are.

    These are in STORED_FIELDS:
    num_shards: equal parts of a global batch whose gradients are averaged; BatchNorm sees one at a time.
    num_stages: consecutive parts of the model that different devices or ranks hold.
    num_microbatches: parts of a shard that pass one after the other; BatchNorm sees one at a time.
    split_size: images of such a part, the last may have fewer, and one loss is of all of them; 0: equal parts, each
        with a loss of its own.
    compression: the type in which gradients travel.
    period: steps between two averages of the weights; 0: gradients are averaged instead.
    group: with a period, shards next to each other whose gradients are averaged at every step all the same.
    exact: whether the update is the reference's to the last bit where sums have one order (two ranks, on CPUs).

    These are for the memory check:
    num_stage_devices: devices that hold the stages of a shard; 0: one for each stage.
    one_f_one_b: as many micro-batches keep activations as there are stages from a device's own on; without it, all do.
    num_gradient_copies: copies of the gradients, such as DDP's buckets.
    num_weight_shards: devices over which weights, gradients and optimizer state are divided; blocks are gathered one by
        one, as FSDP2 does.
    one_process_loads: one process loads the images of all shards, and they arrive on the first device.
    whole_model_on_each: each device holds the whole model, and evaluates its share of every batch.
    autocast: the type in which convolutions compute and keep activations; empty: as config.precision says.
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
        """Devices that hold the stages of a shard."""
        return self.num_stage_devices or self.num_stages

    @property
    def num_devices(self) -> int:
        """Devices of all shards together."""
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
"""Fields of a Layout that a run's settings hold, under these names."""


def resolve_layout(config: Config, layout: Layout) -> Layout:
    """A strategy's layout with the changes that options of every strategy make to it."""
    if config.norm == "sync":  # statistics, and so gradients, are of the whole batch
        layout = dataclasses.replace(layout, num_shards=1)
    # kernels that do several operations at once round once where others round twice
    return dataclasses.replace(layout, exact=layout.exact and not (config.compile or config.fused))


def stored_fields(layout: Layout) -> dict[str, int | str | bool]:
    return {name: getattr(layout, name) for name in STORED_FIELDS}


@dataclasses.dataclass(frozen=True)
class StrategyFacts:
    """What has to be known of a strategy before torch is imported, in a constant `FACTS = StrategyFacts(...)` with
    literal arguments: scripts.strategies.strategy_list reads it without importing the script. By default these values.

    mixed_precision: the strategy scales gradients; where fp32, the default, is requested, it runs what `auto` stands
    for. one_node: it cannot span nodes.
    """

    mixed_precision: bool = False
    one_node: bool = False


Step = Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor | None, torch.Tensor | None]]
"""One optimizer step on this rank's images, float32 (N, 3, H, W), and target, int64 (N,): the detached loss, a scalar,
and scores, (N, classes); Nones on a rank that has neither."""
Predict = Callable[[torch.Tensor], torch.Tensor]
"""Images (N, 3, H, W) to scores (N, classes)."""


class HasState(Protocol):
    """What can be saved beside a model and an optimizer, such as a gradient scaler."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclasses.dataclass(frozen=True)
class TrainingState:
    """How ranks synchronise, save and load what training goes on from. None: the default of Strategy's methods.

    sync: gives all ranks what they hold differently, before it is evaluated or saved. save: what a checkpoint holds,
    whole: `model` under torchvision's names, `optimizer`, and what else the script needs. load: loads what `save`
    returned, on the CPU. Every rank calls all three. extra: more objects to save, by name.
    """

    sync: Callable[[], None] | None = None
    save: Callable[[], dict[str, Any]] | None = None
    load: Callable[[dict[str, Any]], None] | None = None
    extra: Mapping[str, HasState] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Everything that one rank of a strategy trains with.

    config: resolved, as set_up_rank returns it. model: the bare model, without a wrapper. criterion: the module that
    `step` calls for the loss. predict: called equally often on every rank; None: the model. devices: all that this rank
    computes on; empty: the context's. shut_down: leaves the process group, once all ranks are done.

    columns: more of the resolved settings, which only the script knows, such as the size of DDP's buckets. Runs that
    differ in one are not pooled, unless NOT_COMPARED has it. None leaves a column of runs.csv empty, and is no setting.
    """

    config: Config
    context: RankContext
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    loaders: Loaders
    criterion: torch.nn.Module
    step: Step
    layout: Layout
    communication: Communication = dataclasses.field(default_factory=Communication)
    state: TrainingState = dataclasses.field(default_factory=TrainingState)
    predict: Predict | None = None
    devices: Sequence[torch.device] = ()
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shut_down: Callable[[], None] = lambda: None

    @property
    def num_classes(self) -> int:
        return len(self.loaders.train.classes)

    def sync_state(self) -> None:
        """Give all ranks what they hold differently; by default rank 0's buffers."""
        if self.state.sync:
            self.state.sync()
        else:
            sync_buffers(self.model, self.context, self.communication.all_reduce)

    def save_state(self) -> dict[str, Any]:
        """What a checkpoint holds; by default for a strategy whose ranks each hold all of it."""
        if self.state.save:
            return self.state.save()
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state(self, saved: dict[str, Any]) -> None:
        """Load what save_state returned. Raises as load_state_dict does for the state of another strategy."""
        if self.state.load:
            self.state.load(saved)
        else:
            load_whole_state(self.model, self.optimizer, saved)


def load_whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
