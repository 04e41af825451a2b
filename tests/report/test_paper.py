"""For papers: report.tex with its numbers, and the citation.

.venv/bin/python -m pytest tests/report/test_paper.py
"""

import re
import shutil
import tomllib

import pytest
import yaml
from result_sets import add_runs, change, join_sets, write_set
from support import ROOT, recorded

from benchmarks.common.rows import append_rows
from scripts.report import latex, page
from scripts.report.paper import paper_tex
from scripts.results.result_set import load_set

needs_latex = pytest.mark.skipif(not shutil.which(latex.PROGRAM), reason=f"needs a LaTeX: {latex.REMEDY}")


def test_numbers_reach_siunitx_whole(tmp_path):
    """To siunitx a comma is a decimal one, so that 1,234 would be wrong by a thousand."""
    results = load_set(write_set(tmp_path / "set", speeds={"single": 1234.0, "ddp": 2345.0}, precision="fp32"))
    tex = paper_tex(results, {})
    rate, over = results.timed_groups_of("ddp")[0].throughput, results.speedups["ddp"]
    line = next(line for line in tex.splitlines() if line.startswith("ddp &"))
    cells = [cell.strip() for cell in line.removesuffix(r"\\").split("&")]
    assert cells[1:4] == ["2", "5", f"{rate.value:.0f}"] and float(cells[3]) > 2000
    assert cells[4] == rf"[\num{{{rate.low:.0f}}}, \num{{{rate.high:.0f}}}]"
    assert cells[5] == f"{over.value:.2f}" and cells[6] == rf"[\num{{{over.low:.2f}}}, \num{{{over.high:.2f}}}]"
    assert "table-format=4.0" in tex and "J/image" not in tex.partition(r"\toprule")[2].partition(r"\midrule")[0]


@pytest.mark.medium
def test_a_ratio_of_mixed_precision_says_what_it_is_over(tmp_path):
    for name, strategy, precision in (("a", "single", "fp32"), ("b", "ddp", "fp32"), ("c", "single", "bf16")):
        add_runs(tmp_path / name, strategy, 100, precision=precision)
    add_runs(tmp_path / "d", "ddp_amp", 200, precision="bf16")
    tex = paper_tex(load_set(join_sets(tmp_path, "a", "b", "c", "d")), {})
    rows = {line.partition(" &")[0]: line for line in tex.splitlines() if " & " in line}
    assert "}], over bf16 single &" in rows[r"ddp\_amp"] and "}], over fp32 single &" in rows["ddp"]


@pytest.mark.medium
def test_one_run_has_no_interval_and_a_failure_is_told(tmp_path):
    own = write_set(tmp_path / "own")
    change(own, "runs", lambda frame: frame[frame["repeat"] < "2"])
    row = {"run_id": "x", "strategy": "slurm", "status": "failed", "reason": "no luck", "repeat": 1}
    append_rows(own, "runs", [recorded(own, row)])
    tex = paper_tex(load_set(own), {})
    assert r"95\,\%" not in tex and "One run has no interval." in tex
    assert "Attempts without a time: slurm failed" in tex and "./bench report" in tex


def test_letters_that_latex_has_not():
    assert latex.escape_tex("Müller 新 10±2 ²") == r"Müller ? 10$\pm$2 $^2$"
    assert latex.tex_column_format(["199", "1234", "7.25", ""]) == "4.2" and latex.tex_column_format([""]) == "1.0"


@pytest.mark.medium
@pytest.mark.parametrize("there", [False, True])
def test_without_latex_or_with_a_broken_one_the_tex_is_written(tmp_path, monkeypatch, capsys, there):
    own = add_runs(tmp_path / "own", "ddp", 100)
    (own / "report.pdf").write_text("of an older report.tex")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / latex.PROGRAM
    program.write_text("#!/bin/sh\necho '! Undefined control sequence.'; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent if there else tmp_path / "nothing"))
    assert page.main(page.ReportOptions(own)) == 0
    output = capsys.readouterr()
    charts = re.findall(r"\\includegraphics\[.*\]\{(.*)\}", (own / "report.tex").read_text())
    assert charts and all((own / chart).exists() for chart in charts) and not (own / "report.pdf").exists()
    assert ("Undefined control sequence" in output.err) if there else (latex.REMEDY in output.out)


@needs_latex
def test_a_real_latex_takes_it(tmp_path, capsys):
    own = write_set(
        tmp_path / "a paper", device_name=r"\input{/etc/passwd} 100% & $x_1^2$ #{ }~ [a] *b <c> |d| `f` --g"
    )
    assert page.main(page.ReportOptions(own)) == 0
    assert capsys.readouterr().err == "" and (own / "report.pdf").read_bytes().startswith(b"%PDF")


def test_the_citation_is_whole_and_of_this_version():
    """CITATION.cff 1.2.0 needs these keys (its schema's `required`); version and licence are the project's."""
    reported = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= reported.keys() and reported["cff-version"] == "1.2.0"
    assert reported["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert reported["license"] == "BSD-3-Clause" and (ROOT / "LICENSE").read_text().startswith("BSD 3-Clause")
    assert all(author.keys() & {"name", "family-names"} for author in reported["authors"])
