"""Options of the commands that start runs of strategies. Imports nothing heavy: --help reads it."""

import dataclasses
from typing import Annotated, Literal

import tyro

from scripts.shared.option_types import Flag, OptionalInt, OptionalPath, OptionalText, Strategies

RetriedStatus = Annotated[
    Literal["", "failed", "timeout", "interrupted", "skipped", "invalid"],
    tyro.conf.arg(metavar="STATUS", help_behavior_hint=""),
]


@dataclasses.dataclass(frozen=True)
class SharedOptions:
    data: OptionalPath = None
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG. Default: with GPUs and without --config one synthetic
    batch, else imagenet-mini, which is made."""
    config: OptionalPath = None
    """YAML file; default: configs/smoke.yaml, with GPUs configs/imagenet-bench.yaml."""
    results: OptionalPath = None
    """Result set; default: a new one. Of one that exists only the missing runs are started."""
    plan: Flag = False
    """Print the runs, and start none."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""


@dataclasses.dataclass(frozen=True)
class RoundOptions(SharedOptions):
    repeats: int = 5
    """Rounds: each strategy runs once in a round. Fewer than 5 allow no verdict."""
    until: OptionalText = ""
    """More rounds, until all intervals of ratios to `single` have this half-width or less, such as 5%."""
    budget: OptionalText = ""
    """More rounds as long as another one fits into this time, such as 90s, 20m or 1.5h."""
    seeds: OptionalInt = None
    """The rounds take this many seeds in turn; default: one seed."""
    retry: RetriedStatus = ""
    """Run again what ended with this status: failed, timeout, interrupted, skipped or invalid."""


@dataclasses.dataclass(frozen=True)
class RunOptions(RoundOptions):
    strategies: tyro.conf.Positional[Strategies] = ()
    """Such as: single ddp. Default: the core strategies; all: every one."""
    aa: Flag = False
    """A/A: `single` twice a round, under two names. A difference is a false alarm, or an effect of the order."""
