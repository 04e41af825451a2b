"""Options of ./bench verify. Imports nothing heavy: --help reads them."""

import dataclasses

import tyro

from scripts.shared.option_types import OptionalInt, OptionalPath, Strategies


@dataclasses.dataclass(frozen=True)
class VerifyOptions:
    steps: int = 20
    """Optimizer steps of each proof, over two epochs; at most 6 where rounding differs."""
    strategies: tyro.conf.Positional[Strategies] = ()
    """Such as: ddp fsdp. Default: all strategies of the set."""
    strategy_dir: OptionalPath = None
    """Folder with the scripts of further strategies."""
    results: OptionalPath = None
    """Result set whose runs are proved; default: results/latest."""
    data: OptionalPath = None
    """Folder with the images of the set; default: the one that it names."""
    config: OptionalPath = None
    """YAML file: proves what this would run, in place of the set's runs."""
    nproc: OptionalInt = None
    """Ranks on this machine; default: one a GPU, else 2."""
