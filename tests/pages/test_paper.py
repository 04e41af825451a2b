"""For papers: report.tex, its numbers and names, charts as PDF at column width, and the citation.

.venv/bin/python -m pytest tests/pages/test_paper.py
"""

import os
import re
import shutil
import tomllib

import pytest
import yaml
from result_sets import add_runs, join_sets, write_set
from support import ROOT

from benchmarks.common.system.errors import UserError
from scripts.charts.figures import COLUMN_INCHES
from scripts.pages import latex, page
from scripts.pages.paper import paper_tex
from scripts.sets.result_set import load_set

EVIL = r"\input{/etc/passwd} 100% & $x_1^2$ #{ }~ [a] *b <c> |d| 'e' `f` --g"
needs_latex = pytest.mark.skipif(not shutil.which(latex.PROGRAM), reason=f"needs a LaTeX: {latex.REMEDY}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set with a machine named by an attacker, in four digits of images/s, without logs."""
    path = tmp_path_factory.mktemp("paper") / "a set_of 100%"
    return write_set(path, speeds={"single": 1234.0, "ddp": 2345.0}, device_name=EVIL, precision="fp32")


@pytest.fixture(scope="module")
def results(folder):
    return load_set(folder)


@pytest.fixture(scope="module")
def tex(results):
    return paper_tex(results, page.report_figures(results))


@pytest.mark.medium
def test_numbers_reach_siunitx_whole(results, tex):
    """Protects a table from figures that are wrong by a thousand: to siunitx a comma is a decimal one. Mutant: number()
    that leaves the comma of `digits` where it is."""
    rate, over = results.timed_groups_of("ddp")[0].throughput, results.speedups["ddp"]
    line = next(line for line in tex.splitlines() if line.startswith("ddp &"))
    cells = [cell.strip() for cell in line.removesuffix(r"\\").split("&")]
    assert cells[1:4] == ["2", "5", f"{rate.value:.0f}"] and float(cells[3]) > 2000
    assert cells[4] == rf"[\num{{{rate.low:.0f}}}, \num{{{rate.high:.0f}}}]"
    assert cells[5] == f"{over.value:.2f}" and cells[6] == rf"[\num{{{over.low:.2f}}}, \num{{{over.high:.2f}}}]"
    assert "Training throughput on 2 classes, 40 training and 23 validation images." in tex
    assert "table-format=4.0" in tex and "J/image" not in tex.partition(r"\toprule")[2].partition(r"\midrule")[0]


@pytest.mark.medium
def test_a_ratio_of_mixed_precision_says_what_it_is_over(tmp_path):
    """Protects a paper's table: x single of ddp_amp is over bf16 single, as in every other table."""
    for name, strategy, speed, precision in (
        ("a", "single", 100, "fp32"),
        ("b", "ddp", 170, "fp32"),
        ("c", "single", 150, "bf16"),
        ("d", "ddp_amp", 200, "bf16"),
    ):
        add_runs(tmp_path / name, strategy, speed, precision=precision)
    results = load_set(join_sets(tmp_path, "a", "b", "c", "d"))
    rows = {line.partition(" &")[0]: line for line in paper_tex(results, {}).splitlines() if " & " in line}
    assert "}], over bf16 single &" in rows[r"ddp\_amp"] and "}], over fp32 single &" in rows["ddp"]


def test_names_mean_themselves(tex):
    """Protects who compiles a set of somebody else: no name is a command."""
    assert r"\input{" not in tex and r"\textbackslash{}input\{/etc/passwd\}" in tex
    assert r"100\% \& \$x\_1\textasciicircum{}2\$ \#\{ \}\textasciitilde{} {[}a{]} {*}b" in tex
    assert r"-{}-{}g" in tex and "Training throughput: a set\\_of 100\\%" in tex


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\nb\x1b[31m", "a?b?{[}31m"), ("Müller", "Müller"), ("新しい", "???"), ("10±2 ²", r"10$\pm$2 $^2$")],
)
def test_letters_that_latex_has_not(text, expected):
    assert latex.escape_tex(text) == expected


def test_a_column_of_numbers_has_the_places_that_it_needs():
    assert latex.tex_column_format(["199", "1234", "7.25", ""]) == "4.2" and latex.tex_column_format([""]) == "1.0"


@pytest.fixture(scope="module")
def charts(results, tmp_path_factory):
    """Every chart of a column, saved: name, path."""
    target = tmp_path_factory.mktemp("charts")
    return {name: page.save_chart(figure, target, name)[0] for name, figure in page.paper_figures(results).items()}


@pytest.mark.medium
def test_charts_for_a_column_are_as_wide_as_it_with_their_fonts(charts):
    """Protects a submission: journals refuse Type 3 and fonts that are not in the file. Mutant: fonttype 3."""
    assert {"throughput", "speedup", "epoch_seconds"} <= charts.keys()
    for path in charts.values():
        content = path.read_bytes()
        width = float(re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ", content)[1])
        assert width == pytest.approx(72 * COLUMN_INCHES, abs=0.5) and path.suffix == ".pdf"
        assert b"/FontFile2" in content and b"/Type3" not in content, path


@pytest.mark.medium
def test_charts_of_a_page_are_as_they_were(results):
    """Drawing for a column leaves nothing behind: titles and widths of a page's charts."""
    page.paper_figures(results)
    figure = page.report_figures(results)["throughput"]
    assert figure.get_figwidth() == 7 and figure.get_suptitle() and figure.texts


def fake_latex(folder, text):
    folder.mkdir()
    (folder / latex.PROGRAM).write_text(f"#!/bin/sh\n{text}\n")
    (folder / latex.PROGRAM).chmod(0o755)
    return str(folder)


@pytest.mark.medium
@pytest.mark.parametrize("there", [False, True])
def test_without_latex_or_with_a_broken_one_the_tex_is_written(folder, tmp_path, monkeypatch, capsys, there):
    """Protects the report of a machine without LaTeX: the .tex and the exit code are the same."""
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "report.pdf").write_text("of an older report.tex")
    path = fake_latex(tmp_path / "bin", "echo '! Undefined control sequence.'; exit 1")
    monkeypatch.setenv("PATH", path if there else str(tmp_path / "nothing"))
    assert page.main(page.ReportOptions(own)) == 0
    output = capsys.readouterr()
    assert r"\end{document}" in (own / "report.tex").read_text() and not (own / "report.pdf").exists()
    assert (own / "charts/throughput.pdf").exists()
    assert ("Undefined control sequence" in output.err) if there else (latex.REMEDY in output.out)


@needs_latex
def test_a_real_latex_takes_it(folder, tmp_path, capsys):
    """The whole report with the attacker's names, by pdflatex: no error, every chart in it, and no overfull table."""
    own = shutil.copytree(folder, tmp_path / "a paper")
    assert page.main(page.ReportOptions(own)) == 0
    assert capsys.readouterr().err == "" and (own / "report.pdf").read_bytes().startswith(b"%PDF")


def test_a_latex_that_hangs_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_latex(tmp_path / "bin", "exec /bin/sleep 60") + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(latex, "LIMIT_S", 0.2)
    (tmp_path / "x.tex").write_text("")
    with pytest.raises(UserError, match="did not end"):
        latex.compile_pdf(tmp_path / "x.tex")


def test_the_citation_is_whole_and_of_this_version():
    """CITATION.cff 1.2.0 needs these keys (its schema's `required`); version and licence are the project's."""
    reported = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= reported.keys() and reported["cff-version"] == "1.2.0"
    assert reported["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert reported["license"] == "BSD-3-Clause" and (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause")
    assert all(author.keys() & {"name", "family-names"} for author in reported["authors"])


def test_tex_reads_no_file_of_the_set_but_the_report_and_its_charts(tmp_path, monkeypatch):
    """A set from somebody else may hold siunitx.sty, which TeX would run in place of the installed package."""
    result_set = tmp_path / "set"
    (result_set / "charts").mkdir(parents=True)
    for name in ("report.tex", "siunitx.sty", "charts/throughput.pdf", "charts/article.cls"):
        (result_set / name).write_text(name)
    programs = fake_latex(tmp_path / "bin", "find . -type f > names && mv names report.pdf")
    monkeypatch.setenv("PATH", programs + os.pathsep + os.environ["PATH"])
    seen = latex.compile_pdf(result_set / "report.tex").read_text().split()
    assert sorted(set(seen) - {"./names", "./report.pdf"}) == ["./charts/throughput.pdf", "./report.tex"]
