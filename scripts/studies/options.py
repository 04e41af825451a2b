"""Options of the studies, of ab and of compare. Imports nothing heavy: --help reads this module."""

import dataclasses
from pathlib import Path

import tyro

from scripts.runner.options import RoundOptions, SharedOptions
from scripts.shared.option_types import (
    Flag,
    OptionalInt,
    OptionalPath,
    OptionalText,
    SetA,
    SetB,
    Values,
    Variant,
)

DEFAULT_STRATEGY = "ddp"


@dataclasses.dataclass(frozen=True)
class SweepOptions(RoundOptions):
    strategy: str = DEFAULT_STRATEGY
    """The strategy that runs at each point."""
    key: OptionalText = ""
    """A configuration field, such as bucket_cap_mb (`./bench flags` lists all), or ranks."""
    values: Values = ()
    """Its values, such as: 1 5 25 100."""
    weak: Flag = False
    """With --key ranks: each rank has as many images on every number. Default: the global batch is divided."""
    each_option: Flag = False
    """In place of --key: what people turn on, one by one, then all together."""
    to: OptionalText = ""
    """The value that ratios are over; default: the first."""
    allreduce: OptionalPath = None
    """With --key ranks: folder of `./bench study allreduce`, from which the chart adds up steps on more ranks."""


@dataclasses.dataclass(frozen=True)
class AbOptions(SharedOptions):
    a: tyro.conf.Positional[Variant] = ""
    """The first of the two: commit:REV or REV, tree:, flags:..., config:FILE, or python:PATH."""
    b: tyro.conf.Positional[Variant] = ""
    """The second; the ratio is of B over A."""
    strategy: str = DEFAULT_STRATEGY
    """The strategy that is timed."""
    strategy_dir: OptionalPath = None
    """Folder with the scripts of further strategies."""
    repeats: OptionalInt = None
    """Rounds; default: 10. Fewer than 5 decide nothing."""
    budget: OptionalText = ""
    """No round is started that does not fit into this time, such as 20m."""
    fail_over: OptionalText = ""
    """Such as 5%: exit 1 where B is slower by more than this, 3 where that is undecided, 4 where a run failed."""


@dataclasses.dataclass(frozen=True)
class CompareOptions:
    a: tyro.conf.Positional[SetA] = Path("results/latest")
    """Result set A."""
    b: tyro.conf.Positional[SetB] = None
    """Result set B, which is compared with A. Without it, the strategies within A are compared."""
    strategy: OptionalText = ""
    """Only this strategy; within A: over each other one."""
    fail_over: OptionalText = ""
    """Such as 5%: exit 1 where B is slower by more than this, or lacks a strategy, and 3 where that is undecided."""
    day_sd: OptionalText = ""
    """Such as 2%: standard deviation of a machine's speed from day to day, which widens the intervals."""
    price: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=2.50 for each set, or 2.50 for both: of one machine for one hour. Adds hours and money for 90 epochs."""
    anyway: Flag = False
    """Compare sets even if more than machines and software versions differ."""
    json: Flag = False
    """Print the result as one JSON object on stdout; all else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class LoadersOptions:
    data: OptionalPath = None
    """Folder with train/ and val/; default: imagenet-mini, which is made."""
    config: OptionalPath = None
    """YAML file; default: configs/smoke.yaml, with GPUs configs/imagenet-bench.yaml."""
    results: OptionalPath = None
    """Result set; default: a new one."""
    strategy: str = DEFAULT_STRATEGY
    """The strategy that trains with and without loading."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
    repeats: int = 5
    """Windows of each loader, and rounds of training."""
    window_s: float = 2.0
    """Seconds of a loader's window."""


@dataclasses.dataclass(frozen=True)
class AllreduceOptions:
    out: Path = Path("results/allreduce")
    """Folder for the tables."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
    rounds: int = 10
    """Of all sizes; 2 or more."""
    largest: int = 2**28
    """Bytes of the largest all-reduce; a multiple of 1 KB (1024)."""


@dataclasses.dataclass(frozen=True)
class ProfileOptions:
    strategy: str = "single"
    """The strategy whose step is profiled."""
    strategy_dir: OptionalPath = None
    """Folder with the scripts of further strategies."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
    steps: int = 5
    """Steps that are profiled."""
    top: int = 12
    """Kernels, or on a CPU operations, that are listed."""
    trace: OptionalPath = None
    """New folder for a Chrome trace of each rank."""


@dataclasses.dataclass(frozen=True)
class OverheadOptions:
    pairs: int = 10
    """Launches of each, in turn."""
    epochs: int = 4
    """Timed epochs of a launch, after one that is not."""
    steps: int = 20
    """Steps of an epoch, at least 2."""
    config: str = "configs/smoke.yaml"
    """YAML file of the configuration."""
    data: OptionalText = ""
    """Default: the configuration's."""
