"""Options of ./bench run and ./bench slurm. Imports nothing heavy: --help reads them."""

import dataclasses

from scripts.runner.options import RunOptions
from scripts.shared.option_types import Flag, OptionalInt, OptionalPath, OptionalText


@dataclasses.dataclass(frozen=True)
class BenchRunOptions(RunOptions):
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
