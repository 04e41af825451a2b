"""How a strategy divides a step over devices, in numbers: what the memory forecast has to know of it.

Every strategy's script tells its own: `split(config, num_devices) -> Split`. Needs no torch.
"""

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Split:
    """What of a step is where.

    num_shards: parts of the global batch on different devices. num_stages: parts of the model on different devices.
    num_microbatches: parts of a shard, one after the other; the activations of all wait for their backward pass, or,
    with one_f_one_b, of as many as there are stages from a device's own on. copies: of the gradients, such as DDP's
    buckets. whole_batch: the images of all shards are loaded by one process, and arrive on the first device.
    whole_model: each device holds all of it, and evaluates its share of every batch. autocast: what convolutions
    compute in, and keep; empty: what config.precision says.
    """

    num_shards: int = 1
    num_stages: int = 1
    num_microbatches: int = 1
    one_f_one_b: bool = False
    copies: int = 0
    whole_batch: bool = False
    whole_model: bool = False
    autocast: Literal["", "bf16", "fp16"] = ""
