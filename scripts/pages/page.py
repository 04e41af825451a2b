"""Write the report of a result set: report.html, one self-contained file, report.md for pasting, report.tex for papers.

    python -m scripts.pages.page --results results/latest

The HTML holds its charts as SVG, needs no network and no script, and prints well. Beside report.tex, charts/ has them
as PDF, as wide as a column; where there is a LaTeX, report.pdf is made too. Texts from CSV files and data sets are
escaped. Exit code: 1 where no run is ok, 2 for a mistake of the user. Needs no torch.
"""

import contextlib
import dataclasses
import io
import re
import sys
import warnings
from pathlib import Path

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure
from tqdm import tqdm

from benchmarks.common.store.results import write_text_atomically
from benchmarks.common.system.errors import UserError
from scripts.charts.chart_command import command
from scripts.charts.figures import column, describe, fit_to_column, save_chart, troubles
from scripts.charts.plot import CHARTS, DETAIL_CHARTS
from scripts.pages.latex import PROGRAM, REMEDY, compile_pdf
from scripts.pages.markdown import escape_markdown
from scripts.pages.measure_missing import measure
from scripts.pages.paper import paper
from scripts.pages.provenance import commands, facts, launch_lines, scalings, sweeps
from scripts.pages.report_content import (
    COLUMNS,
    EXPLAIN,
    about_mfu,
    headline,
    loader_rows,
    table_rows,
    wall_rows,
)
from scripts.sets.accuracy import about_top1
from scripts.sets.result_set import ResultSet, load_set
from scripts.sets.safe_names import refuse_links
from scripts.sets.set_warnings import warnings_of
from scripts.sets.step_breakdown import about_exposed
from scripts.stats.formatting import clean
from scripts.studies.ablation.analysis import points_of, studied
from scripts.studies.ablation.chart import ablate_chart
from scripts.studies.peers.chart import cells, peers_chart, read_peers
from scripts.studies.roofline.forecast_table import EXPLAIN as ABOUT_FORECAST
from scripts.studies.roofline.forecast_table import HEADER, forecast_table
from scripts.studies.scaling.chart import scaling_chart
from scripts.studies.sweep.chart import sweep_chart

TEMPLATES = Path(__file__).parent / "templates"


@dataclasses.dataclass(frozen=True)
class Options:
    """Write report.html and report.md of a result set."""

    results: Path = Path("results/latest")
    measure: bool = False
    """Measure first what the set lacks; some minutes."""


def figures_of(results: ResultSet) -> dict[str, Figure]:
    """Every chart that the set holds something for, by name."""
    found = {name: draw([results]) for name, draw in (CHARTS | DETAIL_CHARTS).items()}
    # where they are measured aside, so that their runs are not in the table
    aside = [path for name in ("scaling", "sweeps") if (path := results.path / name).is_dir()]
    for source in (results, *map(load_set, aside)):
        for strategy, modes in scalings(source).items():
            found[f"scaling_{strategy}"] = scaling_chart(source, strategy, modes)
        for (strategy, key), points in sweeps(source).items():
            found[f"sweep_{strategy}_{key}"] = sweep_chart(source, strategy, key, points)
    if (aside := results.path / "ablation").is_dir():
        study = load_set(aside)
        for strategy in studied(study):
            found[f"ablate_{strategy}"] = ablate_chart(study, strategy, points_of(study, strategy))
    peers, about_peers = read_peers(results.path)
    if any(row["ratio"] for row in peers):
        found["peers"] = peers_chart(peers, about_peers)
    # names become files and ids
    return {re.sub(r"[^\w-]", "_", name): figure for name, figure in found.items() if figure}


def column_figures(results: ResultSet) -> dict[str, Figure]:
    """The same charts, drawn for a column of a paper."""
    with column(), contextlib.redirect_stderr(io.StringIO()):  # what is wrong was said when they were drawn for a page
        found = figures_of(results)
    for figure in found.values():
        fit_to_column(figure)
    return found


def inline_svg(figure: Figure, name: str) -> Markup:
    """The figure as an <svg> element that can stand beside others in one page: its ids begin with `name`."""
    out = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a device may be named in any script
        figure.savefig(out, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None})
    text = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(<[^<>]*\sid=")', rf"\g<1>{name}-", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    # in a page, unlike in a file, names of XML namespaces are not needed
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    label = escape(clean(figure.get_suptitle().replace("\n", ", ")))
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1))


def build(results: ResultSet) -> tuple[str, str, dict[str, Figure]]:
    """(HTML, Markdown, charts) of a set."""
    drawn = figures_of(results)
    rows = table_rows(results)
    columns = [name for name in COLUMNS if any(row.get(name) for row in rows)]
    loader_verdict, loader = loader_rows(results)
    wall_header, wall = wall_rows(results)
    forecast_state, forecast = forecast_table(results)
    values = {
        "name": results.name,
        "about": describe([results]),
        "headline": headline(results),
        "columns": columns,
        "rows": rows,
        "below": [about_top1(results.groups), about_exposed(results.groups, results.table("steps"))],
        "warnings": [*results.remarks, *warnings_of(results)],
        "troubles": troubles(results),
        "wall_header": wall_header,
        "wall": wall,
        "peers": [cells(row) for row in read_peers(results.path)[0]],
        "loader": loader,
        "forecast_state": forecast_state,
        "forecast_header": HEADER,
        "forecast": forecast,
        "about_forecast": ABOUT_FORECAST,
        "loader_verdict": loader_verdict,
        "commands": commands(results),
        "launches": launch_lines(results),
        "facts": facts(results),
        "explain": (*EXPLAIN, *about_mfu(results)),
        "collect_env": str(results.environment.get("collect_env", "")),
        "first_run": min(results.ok.started_at),
    }
    loading = jinja2.FileSystemLoader(TEMPLATES)
    html = jinja2.Environment(loader=loading, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    markdown = jinja2.Environment(
        loader=loading, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    markdown.filters["md"] = escape_markdown
    bars = tqdm(drawn.items(), desc="charts", disable=None, leave=False)
    pictures = {name: inline_svg(figure, name) for name, figure in bars}
    return (
        html.get_template("report.html.j2").render(values | {"charts": pictures}),
        markdown.get_template("report.md.j2").render(values),
        drawn,
    )


def texts_of(results: ResultSet) -> tuple[dict[str, str], dict[str, Figure]]:
    """The report's files by name, and its charts."""
    html, markdown, drawn = build(results)
    return {"report.html": html, "report.md": markdown, "report.tex": paper(results, drawn)}, drawn


def main(options: Options) -> int:
    refuse_links(options.results)
    failed = measure(options.results) if options.measure else 0
    if failed > 1:  # a signal
        return failed
    results = load_set(options.results)
    if results.ok.empty:
        reasons = " ".join(clean(text) for text in troubles(results)[:3])
        print(
            f"error: no run in {options.results}/runs.csv is ok, so there is nothing to report. {reasons}",
            file=sys.stderr,
        )
        return 1
    print("\n".join(headline(results)))
    texts, _ = texts_of(results)
    try:
        for name, text in texts.items():
            write_text_atomically(results.path / name, text)
        for name, figure in tqdm(column_figures(results).items(), desc="charts as PDF", disable=None, leave=False):
            save_chart(figure, results.path / "charts", name)
    except OSError as error:
        raise UserError(f"cannot write the report in {results.path}: {error.strerror}") from None
    print("\nwritten:", *(f"  {results.path / name}" for name in texts), f"  {results.path}/charts/*.pdf", sep="\n")
    _print_pdf(results.path / "report.tex")
    return failed


def _print_pdf(source: Path) -> None:
    """The PDF of report.tex, where there is a LaTeX; else what makes it. It is no part of the report's exit code."""
    try:
        made = compile_pdf(source)
        print(f"  {made}" if made else f"no {PROGRAM} here, which makes a PDF of report.tex: {REMEDY}")
    except (UserError, OSError) as error:
        print(f"warning: {error}", file=sys.stderr)


if __name__ == "__main__":
    command(main, Options)
