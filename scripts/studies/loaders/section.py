"""The loader's verdict in the report: whether loading limits training, and the images/s that say so."""

import numpy

from scripts.report.study_sections import ReportTable, StudySection, StudySets
from scripts.results.formatting import format_interval, format_number
from scripts.results.result_set import ResultSet
from scripts.studies.loaders.loader_limit import describe_limit, throughput_by_kind


def tables(results: ResultSet) -> list[ReportTable]:
    """The verdict over the rows of loader.csv, and what was measured."""
    windows = results.table("loader")
    if windows.empty:
        return []
    cells = []
    for kind, throughput in throughput_by_kind(windows).items():
        windows_of_loader = windows[windows.what == kind]
        bounds = format_interval(throughput.low, throughput.high, format_number)
        speed = f"{format_number(throughput.value)} {bounds}".rstrip()
        per_core = windows_of_loader.images_per_s_per_core.mean()
        per_core_text = format_number(per_core) if numpy.isfinite(per_core) else ""
        num_windows = f"{windows_of_loader.num_windows.sum():.0f}"
        cells.append([kind, speed, per_core_text, str(throughput.num_runs), num_windows])
    header = (
        "one rank",
        "images/s [95 % over launches]",
        "images/s a core, mean of windows",
        "n launches",
        "n windows",
    )
    return [ReportTable("Is the loader the limit?", f"{describe_limit(windows)}.", header, cells)]


def families(sets: StudySets) -> int:
    """Two ratios to training alone, each with an interval of its own: of the loader, and of both together."""
    return 0 if sets.main.table("loader").empty else 2


SECTION = StudySection(order=5, tables=tables, families=families)
