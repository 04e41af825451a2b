"""How a strategy divides a step over devices, and what is known of a strategy before it is built. Needs no torch.

Every script has a function `layout(config, num_devices) -> Layout`. The run stores STORED_FIELDS, which the proof's
reference repeats. The memory check asks for the layout before anything runs.
"""

import dataclasses
from typing import Literal

from benchmarks.common.config import Config


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
