"""What a study adds to the report: charts and tables.

A study that has something to show ends scripts/studies/<name>/section.py in `SECTION = StudySection(...)`. The report
finds it there, so that no module below the studies imports one. Needs no torch.
"""

import dataclasses
import importlib
from collections.abc import Callable

from matplotlib.figure import Figure

from scripts.results.result_set import ResultSet, load_set
from scripts.shared.repository import ROOT

STUDIES = ROOT / "scripts" / "studies"


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A table under a title and a paragraph."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: list[list[str]]
    """The first column is text, and all others hold numbers."""


@dataclasses.dataclass(frozen=True)
class StudySection:
    """A study's part of the report. What a set holds nothing for is empty."""

    order: int
    """Its place among the sections, the smallest first."""
    folders: tuple[str, ...] = ()
    """Folders of a result set in which the study's runs may be, as a set of their own."""
    figures: Callable[[ResultSet], dict[str, Figure]] = lambda results: {}
    """Charts of the set, and of each set in `folders`, by name."""
    tables: Callable[[ResultSet], list[ReportTable]] = lambda results: []
    """The same for tables."""


def load_sections() -> list[StudySection]:
    """The sections of all studies, in the order of the report."""
    names = sorted(path.parent.name for path in STUDIES.glob("*/section.py"))
    sections = [importlib.import_module(f"scripts.studies.{name}.section").SECTION for name in names]
    return sorted(sections, key=lambda section: section.order)


def study_parts(results: ResultSet) -> tuple[dict[str, Figure], list[ReportTable]]:
    """The charts, by name, and the tables of all studies of a set."""
    figures, tables, nested = dict[str, Figure](), list[ReportTable](), dict[str, ResultSet]()
    for section in load_sections():
        for folder in section.folders:
            if folder not in nested and (results.path / folder).is_dir():
                nested[folder] = load_set(results.path / folder)
        for each in [results, *(nested[name] for name in section.folders if name in nested)]:
            figures |= section.figures(each)
            tables += section.tables(each)
    return figures, tables
