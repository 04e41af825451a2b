"""Options of the commands that start runs of strategies. Imports nothing heavy: --help reads this module."""

import dataclasses
from typing import Annotated, Literal

import tyro

from scripts.options.option_types import (
    Flag,
    OptionalInt,
    OptionalPath,
    OptionalText,
    Strategies,
)

DEFAULT_STRATEGY = "ddp"
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


@dataclasses.dataclass(frozen=True)
class BenchRunOptions(RunOptions):
    """What `./bench run` takes: RunOptions are those that `./bench slurm` has, too."""

    one_gpu: Flag = False
    """What one GPU can compare, in one process: precision, layout, compile, the optimizer's kernel."""
    strategy_dir: OptionalPath = None
    """Folder of another repository with scripts of strategies, which can then be named, too."""


@dataclasses.dataclass(frozen=True)
class SlurmOptions(RunOptions):
    nodes: OptionalInt = None
    """Nodes of the job; default: 1."""
    tasks_per_node: OptionalInt = None
    """Ranks on each node; default: its GPUs."""
    gpus_per_node: OptionalInt = None
    """GPUs of each node; default: those of this machine."""
    cpus_per_task: OptionalInt = None
    """Cores of each rank; default: its share of the cores of the partition's smallest node."""
    partition: OptionalText = ""
    """Slurm's partition; default: the cluster's."""
    account: OptionalText = ""
    """Slurm's account, which pays."""
    qos: OptionalText = ""
    """Slurm's quality of service."""
    gpu_type: OptionalText = ""
    """The GPUs' type, such as a100, where --gres wants it: gpu:a100:8."""
    memory: OptionalText = ""
    """Memory of each node, such as 64G; 0: all."""
    exclusive: Flag = False
    """No other job on the same nodes."""
    time_min: OptionalInt = None
    """Time limit of the job in minutes; default: the partition's."""
    warning_s: OptionalInt = None
    """Seconds before the time limit at which the run in progress is ended; default: 60."""
    container: OptionalText = ""
    """Image in which the scripts run: by Apptainer (.sif), or by srun with pyxis."""


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    steps: int = 20
    """Optimizer steps of each proof, over two epochs; at most 6 where rounding differs, each compared by itself."""
    strategies: tyro.conf.Positional[Strategies] = ()
    """Such as: ddp fsdp. Default: all strategies of the set."""
    strategy_dir: OptionalPath = None
    """Folder of another repository with scripts of strategies, which can then be named, too."""
    results: OptionalPath = None
    """Result set whose runs are proved; default: results/latest."""
    data: OptionalPath = None
    """Folder with the images of the set; default: the one that it names, where its runs are of this machine."""
    config: OptionalPath = None
    """YAML file: proves what this configuration would run, in place of the set's runs."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
    json: Flag = False
    """Print the result as one JSON object on stdout; all else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class MemoryOptions:
    memory_gb: float
    """Memory of one GPU, 10^9 bytes: a V100 has 16.9 or 34.1."""
    num_devices: int = 4
    """GPUs in all."""
    strategies: OptionalText = ""
    """Such as "single ddp"; default: all."""
