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
    time_min: OptionalInt = None
    """Time limit of the job in minutes; default: the partition's."""
    sbatch: OptionalText = ""
    """More options of sbatch, such as --sbatch="--account=lab --exclusive --gres=gpu:a100:8"."""
    container: OptionalText = ""
    """Image in which the scripts run: by Apptainer (.sif), or by srun with pyxis."""
