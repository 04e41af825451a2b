"""What a study adds to the report: charts and tables.

A study that has something to show ends scripts/studies/<name>/section.py in `SECTION = StudySection(...)`, so that no
module below the studies imports one.
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
    """Under a title and a paragraph. The first column is text, and all others hold numbers."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: list[list[str]]


@dataclasses.dataclass(frozen=True)
class StudySection:
    folders: tuple[str, ...] = ()
    """Of a result set, in which the study's runs may be, as a set of their own."""
    figures: Callable[[ResultSet], dict[str, Figure]] = lambda results: {}
    """Charts of the set, and of each set in `folders`, by name."""
    tables: Callable[[ResultSet], list[ReportTable]] = lambda results: []


def load_sections() -> list[StudySection]:
    names = sorted(path.parent.name for path in STUDIES.glob("*/section.py"))
    return [importlib.import_module(f"scripts.studies.{name}.section").SECTION for name in names]


def study_parts(results: ResultSet) -> tuple[dict[str, Figure], list[ReportTable]]:
    figures, tables = dict[str, Figure](), list[ReportTable]()
    for section in load_sections():
        nested = [results.path / folder for folder in section.folders]
        for each in [results, *(load_set(path) for path in nested if path.is_dir())]:
            figures |= section.figures(each)
            tables += section.tables(each)
    return figures, tables
