"""A strategy as one object: what a script's `build(config)` returns, and what the engine, probes and studies drive.

strategy = ddp.build(config)
strategy.step(*next(iter(strategy.loaders.train)))
strategy.shut_down()
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from benchmarks.common.config import Config
from benchmarks.common.loader import Loaders
from benchmarks.common.communication import Communication
from benchmarks.common.rank import RankContext, sync_buffers
from benchmarks.common.layout import Layout

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
