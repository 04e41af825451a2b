"""Write the report of a result set: report.html, one self-contained file, report.md for pasting, report.tex for papers.

    python -m scripts.report.page --results results/latest

The HTML holds its charts as SVG, needs no network and no script, and prints well. Where there is a LaTeX, report.pdf is
made too. Exit code: 1 where no run is ok, 2 for a mistake of the user. Needs no torch.
"""

import dataclasses
import io
import re
import sys
import warnings
from pathlib import Path

import tyro
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.common.errors import UserError
from benchmarks.common.files import write_text_atomically
from scripts.charts.figures import save_chart
from scripts.charts.plot import CHARTS, DETAIL_CHARTS
from scripts.report.headline import headline
from scripts.report.latex import PROGRAM, REMEDY, compile_pdf
from scripts.report.page_templates import TEMPLATES, html_template, markdown_template
from scripts.report.paper import paper_tex
from scripts.report.provenance import environment_facts, launch_lines, reproduction_commands
from scripts.report.report_tables import (
    COLUMN_MEANINGS,
    REPORT_COLUMNS,
    SAME_UPDATE,
    SUMMARY_COLUMNS,
    describe_aa,
    describe_shared_drift,
    summary_rows,
    table_rows,
    wall_tables,
)
from scripts.report.study_sections import ReportTable, load_sections, load_study_sets
from scripts.results.accuracy import describe_top1, furthest_apart
from scripts.results.caused_warning import CausedWarning
from scripts.results.formatting import plural_of_several, printable, printable_lines
from scripts.results.options import ReportOptions
from scripts.results.result_set import ResultSet, load_set
from scripts.results.set_text import describe_failures, describe_sets
from scripts.results.set_warnings import warnings_by_cause
from scripts.results.step_breakdown import describe_exposed
from scripts.shared.programs import run_main_and_exit
from scripts.shared.strategy_list import BASELINE

FIRST_CHART = "throughput"  # stands beside the first table
WALL_ORDER = 50  # of the wall clock's table among the sections of the studies


def report_figures(results: ResultSet) -> dict[str, Figure]:
    """Every chart that the set holds something for, by name: the report's own, then those of the studies."""
    found: dict[str, Figure | None] = {name: draw([results]) for name, draw in (CHARTS | DETAIL_CHARTS).items()}
    sections = load_sections()
    sets = load_study_sets(results, sections)
    for section in sections:
        found |= section.figures(sets)
    # names become files and ids
    return {re.sub(r"[^\w-]", "_", name): figure for name, figure in found.items() if figure}


def tables_below_results(results: ResultSet) -> list[ReportTable]:
    """The tables below the results, in the report's order: those of the studies, and the wall clock's."""
    by_order = [(section.order, table) for section in load_sections() for table in section.tables(results)]
    by_order += [(WALL_ORDER, table) for table in wall_tables(results)]
    return [table for _, table in sorted(by_order, key=lambda entry: entry[0])]


def describe_error_rate(results: ResultSet) -> str:
    """How often a page like this has a false alarm, at most: in its one family with a corrected level, and in all.

    All is the sum over its families of comparisons (Bonferroni).
    """
    sections = load_sections()
    sets = load_study_sets(results, sections)
    others = (len(results.rankable_groups) > 1) + (furthest_apart(results.groups) is not None)
    others += sum(section.families(sets) for section in sections)
    whole = min(100, 5 * (bool(results.baseline_label_of) + others))
    exploratory = (
        f"exploratory: {others} {'family' if others == 1 else 'families'} of comparisons with the highest "
        "mean, of top-1 or in studies, each with 95 % of its own and not corrected for the others"
    )
    over_all = (
        f"Over all families, about {whole} % of such pages at most show a false difference, if rounds are independent "
        "and nearly normal."
    )
    if not results.baseline_label_of:
        return f"All comparisons here are {exploratory}. {over_all}" if others else ""
    main = (
        f"Where all is equal, at most about 5 % of pages show a difference in the column x {BASELINE}, if rounds are "
        "independent and nearly normal; with skewed noise, or where one strategy stalls seldom, more do."
    )
    return f"{main} All else, in the first sentence of the page, too, is {exploratory}. {over_all}" if others else main


@dataclasses.dataclass(frozen=True)
class Report:
    """The files of a report, and its charts as figures."""

    texts: dict[str, str]
    """By the name of the file."""
    figures: dict[str, Figure]
    """By the name of the chart."""


def inline_svg(figure: Figure, name: str, label: str) -> Markup:
    """The figure as an <svg> element that can stand beside others in one page: its ids begin with `name`.

    label: its name for those who do not see it.
    """
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a device may be named in any script
        figure.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r"<[^<>]*>", lambda tag: _as_part_of_a_page(tag[0], name), text)
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(printable(label))}" ', 1))


def _as_part_of_a_page(tag: str, name: str) -> str:
    tag = re.sub(r'(\sid=")', rf"\g<1>{name}-", tag)
    tag = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", tag)
    return re.sub(r' xmlns(:\w+)?="[^"]*"', "", tag).replace("xlink:href=", "href=")


def make_report(results: ResultSet) -> Report:
    """The report of a set, without control characters, which a set may have: nothing is written."""
    figures = report_figures(results)
    rows = table_rows(results)
    columns = [name for name in REPORT_COLUMNS if any(row.get(name) for row in rows)]
    timed = results.timed_groups
    runs = plural_of_several([len(group.windows_of_runs) for group in timed], "run")
    values = {
        "name": results.name,
        "about": describe_sets([results]) + (f"; {runs} a strategy" if timed else ""),
        "headline": headline(results),
        "summary_columns": SUMMARY_COLUMNS,
        "summary_rows": summary_rows(results, rows),
        "any_not_parallel": not all(group.is_parallel for group in timed),
        "columns": columns,
        "rows": rows,
        "below": [
            describe_error_rate(results),
            describe_shared_drift(results),
            describe_aa(results),
            describe_top1(results.groups),
            describe_exposed(results.groups, results.table("steps")),
        ],
        "warnings": [*map(CausedWarning, results.remarks), *warnings_by_cause(results)],
        "troubles": describe_failures(results),
        "tables": tables_below_results(results),
        "commands": reproduction_commands(results),
        "launches": launch_lines(results),
        "facts": environment_facts(results),
        "explain": COLUMN_MEANINGS,
        "same_update": SAME_UPDATE,
        "collect_env": str(results.environment.get("collect_env", "")),
        "first_run": min(results.ok_runs.started_at),
    }
    charts = {
        name: inline_svg(figure, name, figure.get_suptitle().replace("\n", ", "))
        for name, figure in tqdm(figures.items(), desc="charts", disable=None, leave=False)
    }
    texts = {
        "report.html": html_template(TEMPLATES / "report.html.j2").render(
            values | {"first": FIRST_CHART, "charts": charts}
        ),
        "report.md": markdown_template(TEMPLATES / "report.md.j2").render(values),
        "report.tex": paper_tex(results, figures),
    }
    texts = {name: printable_lines(text) for name, text in texts.items()}
    return Report(texts, figures)


def main(options: ReportOptions) -> int:
    results = load_set(options.results)
    if results.ok_runs.empty:
        reasons = " ".join(printable(text) for text in describe_failures(results)[:3])
        print(
            f"error: no run in {options.results}/runs.csv is ok, so there is nothing to report. {reasons}",
            file=sys.stderr,
        )
        return 1
    print("\n".join(headline(results)))
    report = make_report(results)
    try:
        for name, text in report.texts.items():
            write_text_atomically(results.path / name, text)
        for name, figure in tqdm(report.figures.items(), desc="charts as files", disable=None, leave=False):
            save_chart(figure, results.path / "charts", name)
    except OSError as error:
        raise UserError(f"cannot write the report in {results.path}: {error.strerror}") from None
    print("\nwritten:", *(f"  {results.path / name}" for name in report.texts), f"  {results.path}/charts/", sep="\n")
    _print_pdf(results.path / "report.tex")
    return 0


def _print_pdf(source: Path) -> None:
    try:
        made = compile_pdf(source)
        print(f"  {made}" if made else f"no {PROGRAM} here, which makes a PDF of report.tex: {REMEDY}")
    except (UserError, OSError) as error:
        print(f"warning: {error}", file=sys.stderr)


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(ReportOptions)))
