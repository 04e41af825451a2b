"""Options of the studies that start no runs of strategies. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path

from scripts.options.option_types import Names, OptionalInt, OptionalPath, OptionalText


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
    output: OptionalPath = None
    """CSV file to add the ratios to, such as results/published/measured/overhead.csv."""
    fail_under: float = 0.0
    """Exit with 1 where the lower end of the interval lies below."""


@dataclasses.dataclass(frozen=True)
class LoadersOptions:
    data: str = "data/imagenet-mini"
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG."""
    out: Path = Path("results/loaders")
    """Folder for loaders.csv and its chart."""
    image_size: int = 224
    """Pixels along each side."""
    rounds: int = 5
    """Windows of each loader, at least 2."""
    window_s: float = 2.0
    """Seconds of a window."""
    only: OptionalText = ""
    """Words; a loader takes part if its name has one of them."""


@dataclasses.dataclass(frozen=True)
class AllreduceOptions:
    """All-reduces of many sizes on the ranks of this machine."""

    out: Path = Path("results/allreduce")
    """Folder for the tables and the chart."""
    rounds: int = 10
    """Of all sizes of a path; 2 or more."""
    largest: int = 2**28
    """Bytes of the largest all-reduce; a multiple of 1 KB (1024)."""
    only: Names = ()
    """Paths, such as gloo or horovod; default: all that are available."""
    output: OptionalPath = None
    """CSV file to which each path's ratio to a bare loop is added, with commit, date and machine."""


@dataclasses.dataclass(frozen=True)
class ProfileOptions:
    """Where the time of a training step goes."""

    strategy: str = "single"
    """The strategy whose step is profiled."""
    steps: int = 5
    """Steps that are profiled."""
    top: int = 12
    """Kernels, or on a CPU operations, that are listed."""
    output: OptionalPath = None
    """CSV file for the table by kind of layer."""
    trace: OptionalPath = None
    """New folder for one Chrome trace of each rank, for Perfetto or Holistic Trace Analysis."""


@dataclasses.dataclass(frozen=True)
class BenchLoaderLimitOptions:
    results: Path = Path("results/latest")
    """Result set whose loader.csv is to hold the rates."""
    data: OptionalPath = None
    """Folder with train/<class>/*.JPEG and val/<class>/*.JPEG; default: imagenet-mini, which is made."""
    config: OptionalPath = None
    """YAML file; default: configs/smoke.yaml, with GPUs configs/imagenet-bench.yaml."""
    nproc: OptionalInt = None
    """Ranks on this machine, which share its cores; default: one a GPU, else 2."""


@dataclasses.dataclass(frozen=True)
class BenchAllreduceOptions(AllreduceOptions):
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""


@dataclasses.dataclass(frozen=True)
class BenchProfileOptions(ProfileOptions):
    strategy_dir: OptionalPath = None
    """Folder of another repository with scripts of strategies, which can then be named, too."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
