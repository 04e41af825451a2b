"""Options of the commands that read result sets. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path

import tyro

from scripts.shared.option_types import OptionalPath


@dataclasses.dataclass(frozen=True)
class PlotOptions:
    """Draw the charts of result sets and print their summary table."""

    results: tuple[Path, ...] = (Path("results/latest"),)
    """Result sets, drawn side by side."""
    output: OptionalPath = None
    """Folder for the charts; default: charts/ in the (first) set."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write report.html and report.md of a result set."""

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
    """Write a result set as JSON, for other programs."""

    results: tyro.conf.Positional[Path] = Path("results/latest")
    """The result set."""
    out: OptionalPath = None
    """The file to write; default: stdout."""
