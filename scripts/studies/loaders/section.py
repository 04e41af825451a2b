"""Loading in the report: whether it limits training, and images/s of each loader."""

import pandas

from scripts.report.study_sections import ReportTable, StudySection
from scripts.results.result_set import ResultSet
from scripts.studies.loaders.limit import FILE, describe_limit, limit_points, rates_cells


def tables(results: ResultSet) -> list[ReportTable]:
    path = results.path / FILE
    if limit_points(results) is None or not path.exists():
        return []
    header, *lines = rates_cells(pandas.read_csv(path))
    text = f"{'. '.join(describe_limit(results))}."
    return [ReportTable("Is the loader the limit?", text, header, [[*line] for line in lines])]


SECTION = StudySection(folders=("loaders",), tables=tables)
