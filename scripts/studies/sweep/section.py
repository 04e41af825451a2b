"""The sweeps in the report: a chart and a table of each."""

from matplotlib.figure import Figure

from scripts.report.study_sections import ReportTable, StudySection, StudySets
from scripts.results.result_set import ResultSet
from scripts.studies.sweep.chart import draw_all
from scripts.studies.sweep.points import FOLDERS, load_sweeps, results_of_sweeps, table_lines


def tables(results: ResultSet) -> list[ReportTable]:
    found = []
    for result in results_of_sweeps(results):
        header, *lines = table_lines(result)
        title = f"Sweep of {result.sweep.strategy}: {result.sweep.key}"
        found.append(ReportTable(title, result.sweep.flags, header, [[*line] for line in lines]))
    return found


def figures(sets: StudySets) -> dict[str, Figure]:
    return {name: figure for results in sets.all_of(*FOLDERS) for name, figure in draw_all(results).items()}


def families(sets: StudySets) -> int:
    return sum(len(load_sweeps(results.path)) for results in sets.all_of(*FOLDERS))


SECTION = StudySection(order=20, nested_folders=FOLDERS, figures=figures, tables=tables, families=families)
