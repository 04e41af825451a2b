"""Write the report of a result set: report.html, one file with everything in it; report.md, and table.tex for papers.

    ./bench report --results results/latest

It renders what was measured, and starts nothing. Exit code: 1 where no run is ok, 2 for a mistake.
"""

import base64
import dataclasses
import io
import re
import sys
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from benchmarks.common.errors import UserError
from benchmarks.common.files import without_controls, write_text_atomically
from scripts.charts.plot import CHARTS, draw_charts
from scripts.report.provenance import environment_facts, recorded, reproduction_commands
from scripts.report.report_tables import COLUMN_MEANINGS, all_rows, first_rows, table_tex
from scripts.report.study_sections import study_parts
from scripts.report.templates import render
from scripts.results.answer import find_answer
from scripts.results.formatting import plural_of_several
from scripts.results.options import ReportOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.set_text import describe_failures, describe_rows
from scripts.results.set_warnings import find_warnings
from scripts.results.why import why_rows


@dataclasses.dataclass(frozen=True)
class Chart:
    """name: of the file, without its end."""

    name: str
    title: str
    png: bytes

    @property
    def data(self) -> Markup:
        return Markup("data:image/png;base64,") + base64.b64encode(self.png).decode()


@dataclasses.dataclass(frozen=True)
class Report:
    """texts: of files, by name."""

    texts: dict[str, str]
    charts: list[Chart]

    def write(self, folder: Path) -> None:
        """Raises OSError."""
        (folder / "charts").mkdir(exist_ok=True)
        for name, text in self.texts.items():
            write_text_atomically(folder / name, text)
        for chart in self.charts:
            (folder / "charts" / f"{chart.name}.png").write_bytes(chart.png)


def make_report(results: ResultSet) -> Report:
    """Of a set with an ok run, without control characters; nothing is written."""
    own_figures = draw_charts(results)
    study_figures, tables = study_parts(results)
    charts = {name: _chart(name, figure) for name, figure in (own_figures | study_figures).items()}
    answer, timed = find_answer(results), results.timed_groups
    runs = plural_of_several([len(group.windows_of_runs) for group in timed], "run")
    values = {
        "set": results.name,
        "title": describe_rows(results.ok_runs),
        "about": "; ".join(
            [
                f"torch {' or '.join(recorded(results, 'torch')) or 'unknown'}",
                f"commit {' and '.join(recorded(results, 'commit')) or 'unknown'}",
                min(results.ok_runs.started_at)[:10] or "no date",
                f"{runs} a strategy" if timed else "no timed run",
            ]
        ),
        "sentences": answer.report_sentences if answer else ["No run has a throughput."],
        "charts": dict.fromkeys(CHARTS) | {name: charts[name] for name in own_figures},
        "first_rows": first_rows(results),
        "failures": describe_failures(results),
        "why": why_rows(results),
        "warnings": [warning.line for warning in find_warnings(results)],
        "all_rows": all_rows(results),
        "meanings": COLUMN_MEANINGS,
        "study_charts": [charts[name] for name in study_figures],
        "study_tables": tables,
        "commands": reproduction_commands(results),
        "facts": environment_facts(results),
        "collect_env": str(results.environment.get("collect_env", "")),
    }
    texts = {name: render(name, **values) for name in ("report.html", "report.md")} | {"table.tex": table_tex(results)}
    return Report({name: without_controls(text) for name, text in texts.items()}, [*charts.values()])


def _chart(name: str, figure: Figure) -> Chart:
    figure.savefig(out := io.BytesIO(), format="png", dpi=200)
    name = re.sub(r"[^\w-]", "_", name, flags=re.ASCII)  # it becomes a file
    return Chart(name, figure.get_suptitle().replace("\n", " "), out.getvalue())


def main(options: ReportOptions) -> int:
    results = load_set(options.results)
    if results.ok_runs.empty:
        reasons = " ".join(describe_failures(results)[:3])
        print(f"error: no run in {options.results} is ok, so there is nothing to report. {reasons}", file=sys.stderr)
        return 1
    report = make_report(results)
    try:
        report.write(results.path)
    except OSError as error:
        raise UserError(f"cannot write the report in {results.path}: {error.strerror}") from None
    print("written:", *(f"  {results.path / name}" for name in [*report.texts, "charts/"]), sep="\n")
    return 0
