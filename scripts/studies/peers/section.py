"""The comparison with other projects' loops in the report: a table of ratios and their chart."""

from matplotlib.figure import Figure

from scripts.pages.study_sections import ReportTable, StudySection, StudySets
from scripts.sets.result_set import ResultSet
from scripts.studies.peers.chart import peers_chart, read_peers, report_cells

HEADER = ("loop", "pairs", "suite, images/s", "images/s", "suite / it [95 %]", "")
TEXT = (
    "The suite's ddp over other loops: same model, images, batches, ranks and threads, interleaved launches; each "
    "interval is of one comparison. Above 1 the suite is faster."
)


def figures(sets: StudySets) -> dict[str, Figure]:
    rows, about = read_peers(sets.main.path)
    return {"peers": peers_chart(rows, about)} if any(row["ratio"] for row in rows) else {}


def tables(results: ResultSet) -> list[ReportTable]:
    rows, _ = read_peers(results.path)
    if not rows:
        return []
    last = len(HEADER) - 1
    return [
        ReportTable(
            "What one would pick instead", TEXT, HEADER, [report_cells(row) for row in rows], text_columns=(0, last)
        )
    ]


def families(sets: StudySets) -> int:
    return sum(bool(row["ratio"]) for row in read_peers(sets.main.path)[0])


SECTION = StudySection(order=45, figures=figures, tables=tables, families=families)
