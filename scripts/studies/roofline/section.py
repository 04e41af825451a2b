"""The forecast for GPUs in the report: what they could reach, beside what the set has measured of them."""

from scripts.pages.study_sections import ReportTable, StudySection
from scripts.sets.result_set import ResultSet
from scripts.studies.roofline.forecast_table import FORECAST_EXPLANATION, FORECAST_HEADER, forecast_table


def tables(results: ResultSet) -> list[ReportTable]:
    state, rows = forecast_table(results)
    if not rows:
        return []
    text = f"{state}."
    table = ReportTable("Forecast for GPUs", FORECAST_EXPLANATION, FORECAST_HEADER, rows, text, text_columns=(0, 1))
    return [table]


SECTION = StudySection(order=60, tables=tables)
