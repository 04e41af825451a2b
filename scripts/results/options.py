"""Options of the commands that read result sets. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path
from typing import Literal

import tyro

from scripts.shared.option_types import OptionalPath


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Draw the charts of a result set, also while a training goes on, and print its table and the answer."""

    results: Path = Path("results/latest")
    """The result set."""
    output: OptionalPath = None
    """Folder for the charts; default: charts/ in the set."""
    format: tuple[Literal["png", "svg", "pdf"], ...] = ("png",)
    """Of the charts, one or more."""
    beside: Literal["", "v100x4"] = ""
    """v100x4: draw the published times of 4 V100 beside a set measured with configs/v100x4.yaml."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write report.html, report.md and table.tex of a result set; what it shows was measured before."""

    results: Path = Path("results/latest")
    """The result set."""


@dataclasses.dataclass(frozen=True)
class PublishOptions:
    """Copy a result set into results/published/<name>/, without names of hosts, users and folders."""

    name: str
    """<hardware>_<torch>_<yyyymm>."""
    results: Path = Path("results/latest")
    """The result set."""


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Print a result set as JSON, for other programs."""

    results: tyro.conf.Positional[Path] = Path("results/latest")
    """The result set."""


@dataclasses.dataclass(frozen=True)
class WhyOptions:
    """What limits each strategy, largest part of a step first, and the one option to try next."""

    results: tyro.conf.Positional[Path] = Path("results/latest")
    """The result set."""
