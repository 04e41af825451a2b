"""The sweeps in the report: a chart and a table of each."""

from scripts.report.study_sections import ReportTable, StudySection
from scripts.results.result_set import ResultSet
from scripts.studies.sweep.chart import draw_all
from scripts.studies.sweep.points import FOLDERS, results_of_sweeps, table_lines


def tables(results: ResultSet) -> list[ReportTable]:
    found = []
    for result in results_of_sweeps(results):
        header, *lines = table_lines(result)
        title = f"Sweep of {result.sweep.strategy}: {result.sweep.key}"
        found.append(ReportTable(title, result.sweep.flags, header, [[*line] for line in lines]))
    return found


SECTION = StudySection(folders=FOLDERS, figures=draw_all, tables=tables)
