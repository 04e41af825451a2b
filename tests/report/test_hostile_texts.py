"""Sets come from others: their texts do nothing in HTML, LaTeX, Markdown, CSV, a shell or the terminal.

.venv/bin/python -m pytest tests/report/test_hostile_texts.py
"""

import json
import re
import subprocess
from html.parser import HTMLParser

from result_sets import add_runs

from benchmarks.common.rows import append_rows, read_table
from scripts.charts.plot import summary_table
from scripts.report import page
from scripts.report.provenance import reproduction_commands
from scripts.results.result_set import load_set

EVIL = "<script>alert(1)</script>|[a](javascript:x)|`touch ran`|$(touch ran)|\\input{/etc/passwd}|$x^2$|' onload='x"
STEERS = "\x1b[2J\u202e"


class Tags(HTMLParser):
    """Names of the elements and attributes of a page."""

    def __init__(self, html):
        super().__init__()
        self.found = set()
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag} | {name for name, _ in attrs}


def test_texts_of_a_hostile_set_are_text_in_every_format(tmp_path, monkeypatch):
    add_runs(tmp_path / "plain", "ddp", 100)
    folder = add_runs(tmp_path / "hostile", f"=cmd(){EVIL}", 100, device_name=f"=cmd(){EVIL}", commit=EVIL)
    facts = {"platform": EVIL, "collect_env": STEERS + EVIL, "variables": {"ARGS": EVIL, "CONFIG": "```"}}
    (folder / "environment.json").write_text(json.dumps(facts))
    (folder / "runs.csv").write_text((folder / "runs.csv").read_text().replace("Test CPU", f"{STEERS}Test CPU"))
    assert "\n=cmd" not in (table := (folder / "runs.csv").read_text()) and ",=cmd" not in table, "no formula"
    plain, results = load_set(tmp_path / "plain"), load_set(folder)
    made = page.make_report(results).texts
    assert not re.search("[\x1b\u202e]", "".join([*made.values(), summary_table(results)])), "nothing steers a terminal"
    assert Tags(made["report.html"]).found <= Tags(page.make_report(plain).texts["report.html"]).found | {"pre", "wbr"}
    before, _, after = re.split(r"(?m)^```$", made["report.md"])  # the commands are in one fence, which nothing closes
    assert "<script" not in before + after and not re.search(r"(?<!\\)(\]\(|`)", before + after)
    assert not re.search(r"\\(write18|input)\b", made["report.tex"]) and "textbackslash{}input" in made["report.tex"]
    assert all(re.fullmatch(r"[\w-]+", name) for name in page.report_figures(results)), "names of files"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Makefile").write_text(".DEFAULT:\n\t@true\n")
    for line in reproduction_commands(results):
        subprocess.run(["bash", "-c", line], capture_output=True)
    assert not (tmp_path / "ran").exists()


def test_a_cell_that_begins_as_a_formula_is_read_back_as_it_was(tmp_path):
    append_rows(tmp_path, "runs", [{"run_id": "x", "strategy": "=cmd()", "status": "ok"}])
    assert [*read_table(tmp_path, "runs").strategy] == ["=cmd()"]
