"""The report: one file that asks for nothing, and right in its numbers.

.venv/bin/python -m pytest tests/report/test_report.py
"""

import json
import re
import subprocess
import tomllib
from html.parser import HTMLParser

import pytest
import yaml
from result_sets import CPU, add_runs, write_set
from support import ROOT, recorded

from benchmarks.common.rows import append_rows, read_table
from scripts.report import page, report_tables, study_sections
from scripts.report.provenance import reproduction_commands
from scripts.results.answer import find_answer, terminal_text
from scripts.results.result_set import load_set


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A set with a proof, a skipped strategy and a recorded command, its report.html and report.md."""
    speeds = {"single": 100.0, "ddp": 180.0, "horovod_ddp": 181.0, "fsdp": 60.0}
    folder = write_set(tmp_path_factory.mktemp("sets") / "a set & more", speeds, flops_per_image=1e9, precision="fp32")
    add_runs(folder, "zero1", 150, image_size=48)
    skipped = CPU | {"run_id": "x", "strategy": "apex_ddp", "status": "skipped", "reason": "no GPU"}
    append_rows(folder, "runs", [recorded(folder, skipped)])
    facts = {
        "num_cores": 2,
        "command": "./bench run single ddp horovod_ddp fsdp --config 'a b.yaml' --repeats 5 -- --seed 3",
        "measured_peak": {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}},
    }
    (folder / "environment.json").write_text(json.dumps(facts))
    assert page.main(page.ReportOptions(folder)) == 0
    return folder, (folder / "report.html").read_text(), (folder / "report.md").read_text()


class Tags(HTMLParser):
    """Names of the elements and attributes of a page, and the addresses in it."""

    def __init__(self, html):
        super().__init__()
        self.found, self.addresses = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found |= {tag} | {name for name, _ in attrs}
        self.addresses += [value for name, value in attrs if name in ("href", "src")]


def test_the_page_is_one_file_in_the_order_of_a_reader(written):
    """It can be mailed or printed: no script, no address, every chart inside."""
    folder, html, _ = written
    tags = Tags(html)
    assert not {"script", "link", "iframe", "object", "base"} & tags.found and "@import" not in html
    assert len(tags.addresses) >= 4 and all(value.startswith("data:image/png") for value in tags.addresses)
    places = [html.index(f"<p>{sentence}") for sentence in find_answer(load_set(folder)).report_sentences]
    wanted = ("<img", "same update?", "<h2>Where the time goes", "<h2>Learning curves", "<summary>Warnings")
    wanted += ("<summary>All columns", "<summary>How to do it again", "git checkout abc", "--config &#39;a b.yaml&#39;")
    places += [html.index(text, html.index("<main>")) for text in wanted]
    assert places == sorted(places)


def test_the_markdown_has_pictures_and_headings_and_few_words(written):
    folder, _, markdown = written
    pictures = re.findall(r"!\[.+\]\((.+)\)", markdown)
    assert len(pictures) >= 4 and all((folder / picture).exists() for picture in pictures)
    assert "\n## Where the time goes\n" in markdown and "\n    ./bench run single ddp" in markdown
    assert len([word for line in markdown.splitlines() if line[:1] != "|" for word in line.split()]) <= 900


def test_the_tables_have_the_measured_numbers(written):
    folder, _, _ = written
    results = load_set(folder)
    rate = results.timed_groups_of("ddp")[0].throughput
    first, rows = (
        {row["strategy"]: row for row in rows(results)} for rows in (report_tables.first_rows, report_tables.all_rows)
    )
    assert [*first, "apex_ddp"] == [*rows] and first["ddp"]["same update?"] == "identical"
    assert rows["ddp"]["images/s"] == f"{rate.value:.1f} [{rate.low:.1f}, {rate.high:.1f}]"
    assert rows["ddp"]["MFU %"] == f"{100 * rate.value * 1e9 / (2 * 0.2e12):.1f}"
    assert "skipped: apex_ddp: no GPU" in (folder / "report.md").read_text()


def test_a_pair_has_one_interval_wherever_it_is_shown(written):
    folder, html, _ = written
    results = load_set(folder)
    over = results.speedups["ddp"].text()
    tex = (folder / "table.tex").read_text()
    shown = (terminal_text(results), tex, re.sub("<.*?>", "", html))
    assert all(over in " ".join(text.split()) for text in shown)


def test_every_study_is_found_and_says_nothing_of_a_set_without_it(tmp_path):
    assert len(study_sections.load_sections()) == len([*(ROOT / "scripts/studies").glob("*/section.py")]) > 0
    assert study_sections.study_parts(load_set(add_runs(tmp_path, "ddp", 100))) == ({}, [])


def test_no_ok_rows_is_a_sentence_and_exit_1(tmp_path, capsys):
    failed = CPU | {"run_id": "a", "strategy": "ddp", "status": "failed", "reason": "planted"}
    append_rows(tmp_path, "runs", [recorded(tmp_path, failed)])
    assert page.main(page.ReportOptions(tmp_path)) == 1
    assert "planted" in capsys.readouterr().err and not (tmp_path / "report.html").exists()


EVIL = "<script>alert(1)</script>|[a](javascript:x)|`touch ran`|$(touch ran)|\\input{/etc/passwd}|$x^2$|' onload='x"
STEERS = "\x1b[2J\u202e"


def test_texts_of_a_hostile_set_are_text_in_every_format(written, tmp_path, monkeypatch):
    """Sets come from others: their text does nothing in HTML, Markdown, LaTeX, CSV, a shell or the terminal."""
    folder = add_runs(tmp_path / "hostile", f"=cmd(){EVIL}", 100, device_name=f"=cmd(){EVIL}", commit=EVIL)
    facts = {"platform": EVIL, "collect_env": STEERS + EVIL, "command": f"```\n{STEERS}{EVIL}"}
    (folder / "environment.json").write_text(json.dumps(facts))
    (folder / "runs.csv").write_text((folder / "runs.csv").read_text().replace("Test CPU", f"{STEERS}Test CPU"))
    assert not re.search(r"(^|,)=cmd", (folder / "runs.csv").read_text()), "no formula"
    assert read_table(folder, "runs").strategy[0].startswith("=cmd()"), "and read back as it was"
    results = load_set(folder)
    made, (_, as_usual, _) = page.make_report(results), written
    texts = made.texts
    assert not re.search("[\x1b\u202e]", "".join([*texts.values(), terminal_text(results)])), (
        "nothing steers a terminal"
    )
    assert Tags(texts["report.html"]).found <= Tags(as_usual).found | {"code"}
    prose = "\n".join(line for line in texts["report.md"].splitlines() if line[:4] != "    " and line[:2] != "![")
    assert "<script" not in prose and not re.search(r"(?<!\\)(\]\(|`)", prose) and "\n```" not in texts["report.md"]
    assert "\\input" not in texts["table.tex"] and r"textbackslash\{\}input" not in texts["table.tex"]
    assert all(re.fullmatch(r"[\w-]+", chart.name) for chart in made.charts), "names of files"
    monkeypatch.chdir(tmp_path)
    for line in reproduction_commands(results)[:1]:
        subprocess.run(["bash", "-c", line], capture_output=True)
    assert not (tmp_path / "ran").exists()


def test_the_citation_is_of_this_version():
    reported = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert reported["version"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
