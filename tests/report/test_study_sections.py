"""What studies add to the report: each section.py is found, and their order is that of the report.

.venv/bin/python -m pytest tests/report/test_study_sections.py
"""

from support import ROOT

from scripts.report.page import WALL_ORDER
from scripts.report.study_sections import StudySets, load_sections
from scripts.results.result_set import ResultSet


def test_every_section_is_found_and_has_a_place_of_its_own():
    """Protects a study's part of the report, which no list names: two of one order would be sorted by chance."""
    sections = load_sections()
    orders = [section.order for section in sections]
    assert len(sections) == len([*(ROOT / "scripts/studies").glob("*/section.py")]) > 0
    assert orders == sorted(orders) and len({*orders, WALL_ORDER}) == len(orders) + 1


def test_a_set_without_studies_has_no_figures_and_tables_of_them(tmp_path):
    results = ResultSet("a set", tmp_path, [], [])
    assert not any(section.tables(results) for section in load_sections())
    assert not any(section.figures(StudySets(results, {})) for section in load_sections())
