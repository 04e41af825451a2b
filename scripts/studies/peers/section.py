"""The comparison with other projects' loops in the report: a table of ratios and their chart."""

from matplotlib.figure import Figure

from scripts.pages.study_sections import ReportTable, StudySection, StudySets
from scripts.sets.result_set import ResultSet
from scripts.studies.peers.chart import peers_chart, read_peers, report_cells

HEADER = ("loop", "pairs", "suite, images/s", "images/s", "suite / it [95 %]", "")
TEXT = (
    "The suite's ddp over other loops: same model, images, batch size, ranks and threads, interleaved launches. "
    "The order of images and the crops differ, and so does the decoder where the suite's is not Pillow. Horovod's loop "
    "reads no images: it repeats one random batch, and so does the suite beside it. From commit 251189a1 on "
    "the other loops keep freed memory on a CPU, as the suite does; by themselves they would not. Each interval is of "
    "one comparison in one session. By default a comparison ends when its interval is narrow, which may then cover "
    "less than 95 %. Above 1 the suite is faster."
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
