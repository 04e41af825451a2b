"""What a study adds to the report: charts and tables.

A study that has something to show puts a file section.py into its folder, scripts/studies/<name>/, which ends in
`SECTION = StudySection(...)`. The report finds it there, so that no module below the studies imports one.
Needs no torch.
"""

import dataclasses
import importlib
from collections.abc import Callable, Mapping

from matplotlib.figure import Figure

from scripts.results.result_set import ResultSet, load_set
from scripts.shared.repository import ROOT

STUDIES = ROOT / "scripts" / "studies"


@dataclasses.dataclass(frozen=True)
class StudySets:
    """The result set of a report, and the sets in its folders, in which studies were measured by themselves."""

    main: ResultSet
    nested: Mapping[str, ResultSet]
    """By the name of the folder."""

    def all_of(self, *folders: str) -> list[ResultSet]:
        """The set, and its nested sets of these names, as far as they exist."""
        return [self.main, *(self.nested[name] for name in folders if name in self.nested)]


@dataclasses.dataclass(frozen=True)
class ReportTable:
    """A table of report.html and report.md, under a title and a paragraph."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: list[list[str]]
    """The first column is text, and all others hold numbers."""


@dataclasses.dataclass(frozen=True)
class StudySection:
    """A study's part of the report. What a set holds nothing for is empty."""

    order: int
    """Its place among the sections, the smallest first; the report's own table of the wall clock has 50."""
    nested_folders: tuple[str, ...] = ()
    """Folders of a result set in which the study's runs may be, as a set of their own."""
    figures: Callable[[StudySets], dict[str, Figure]] = lambda sets: {}
    """Charts by name."""
    tables: Callable[[ResultSet], list[ReportTable]] = lambda results: []
    families: Callable[[StudySets], int] = lambda sets: 0
    """How many families of comparisons its charts and tables hold, each with 95 % of its own."""


def load_sections() -> list[StudySection]:
    """The sections of all studies, in the order of the report."""
    names = sorted(path.parent.name for path in STUDIES.glob("*/section.py"))
    sections = [importlib.import_module(f"scripts.studies.{name}.section").SECTION for name in names]
    return sorted(sections, key=lambda section: section.order)


def load_study_sets(results: ResultSet, sections: list[StudySection]) -> StudySets:
    """The set with every nested set that one of the sections reads."""
    folders = dict.fromkeys(folder for section in sections for folder in section.nested_folders)
    return StudySets(
        results, {name: load_set(results.path / name) for name in folders if (results.path / name).is_dir()}
    )
