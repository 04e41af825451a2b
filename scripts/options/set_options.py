"""Options of the commands that read result sets. Imports nothing heavy: --help reads them."""

import dataclasses
from pathlib import Path

import tyro

from scripts.options.option_types import Flag, OptionalPath, OptionalText, SetA, SetB, Sets


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
class CompareOptions:
    """Is one result really faster than another? Ratio, 95 % interval, verdict, and what could have been seen."""

    a: tyro.conf.Positional[SetA] = Path("results/latest")
    """Result set A, the baseline."""
    b: tyro.conf.Positional[SetB] = None
    """Result set B, which is compared with A. Without it, the strategies within A are compared."""
    strategy: OptionalText = ""
    """Only this strategy."""
    fail_over: OptionalText = ""
    """Such as 5%: exit 1 where the whole interval of B/A says that B is slower by more than this, and 3 where that is
    undecided."""
    day_sd: OptionalText = ""
    """Such as 2%: standard deviation from day to day of one run's throughput, if it is known."""
    day_sets: Sets = ()
    """Three or more sets of the same settings, of as many days, to measure it from."""
    anyway: Flag = False
    """Compare sets even if more than strategies and software versions differ."""
    json: Flag = False
    """Print the result as one JSON object on stdout; all else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class PowerOptions:
    """How many rounds does it take to see a difference of 2, 5 or 10 %, with the spread that a result set has?"""

    results: Path = Path("results/latest")
    """Result set whose spread between runs is taken."""
    json: Flag = False
    """Print the result as one JSON object on stdout; all else goes to stderr."""


@dataclasses.dataclass(frozen=True)
class DecideOptions:
    """Which machine should train ImageNet? Hours, money and energy of 90 epochs, with intervals."""

    sets: tyro.conf.Positional[Sets]
    """A result set of each machine."""
    price: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """NAME=2.50, once for each set: the price of one machine for one hour, in any currency. Without NAME it is that of
    each machine."""
    strategy: OptionalText = ""
    """Only this strategy. Fewer comparisons have narrower intervals; choose it before you look."""
    day_sd: OptionalText = ""
    """Such as 2%: standard deviation from day to day of one run's throughput, if it is known."""
    day_sets: Sets = ()
    """Three or more sets of the same settings, of as many days, to measure it from."""
    output: Path = Path("results/decide")
    """Folder for decide.csv and the chart."""
    json: Flag = False
    """Print the result as one JSON object on stdout; all else goes to stderr."""


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
