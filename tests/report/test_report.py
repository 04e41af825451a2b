"""The report: self-contained, right in its numbers and sentences, and readable on a phone.

.venv/bin/python -m pytest tests/report/test_report.py
"""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser

import pytest
from result_sets import CPU, add_runs, join_sets
from support import ROOT, environment, recorded

from benchmarks.common.rows import append_rows
from scripts.report import page as report
from scripts.report import report_tables
from scripts.report.headline import headline
from scripts.results.result_set import load_set


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A set with everything in it, its report.html and report.md."""
    folder = tmp_path_factory.mktemp("sets") / "a set & more"
    for strategy, speed in (("single", 100), ("ddp", 180), ("horovod_ddp", 180.5), ("slurm", 60)):
        unread = {"skipped_files": 3} if strategy in ("ddp", "horovod_ddp") else {}
        add_runs(folder, strategy, speed, num_windows=9, **unread)
    skipped = CPU | {"run_id": "x", "strategy": "apex_ddp", "status": "skipped", "reason": "no GPU"}
    append_rows(folder, "runs", [recorded(folder, skipped)])
    identities = {group.strategy: group.identity for group in load_set(folder).groups}
    proofs = {
        "single": {"max_relative_difference": 0.0, "bit_identical": True, "verdict": "ok"},
        "ddp": {"max_relative_difference": 1.2e-7, "bit_identical": False, "verdict": "ok"},
        "slurm": {"max_relative_difference": 0.5, "verdict": "failed", "reason": "fc.weight"},
        "apex_ddp": {"verdict": "skipped", "reason": "no GPU"},
    }
    for strategy, row in proofs.items():  # the proof ran with the settings of the set, but for its length
        asked = identities[strategy].requested | {"steps": 10, "epochs": 2}
        row |= {"asked": json.dumps(asked), "met": json.dumps(identities[strategy].resolved), "strategy": strategy}
        append_rows(folder, "equivalence", [{"run_id": "v", "steps": 20, "world_size": 2, "tolerance": 1e-6} | row])
    facts = {
        "num_cores": 2,
        "command": "./bench run single ddp horovod_ddp slurm --config 'a b.yaml' --repeats 5 -- --seed 3",
        "measured_peak": {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}},
    }
    (folder / "environment.json").write_text(json.dumps(facts))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="constrained_layout")  # a chart of which nothing is seen
        assert report.main(report.ReportOptions(folder)) == 0
    return folder, (folder / "report.html").read_text(), (folder / "report.md").read_text()


class Page(HTMLParser):
    """The tags, ids and attributes of a page, and its texts with the elements that each is in."""

    VOID = ("meta", "br", "wbr", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.attributes, self.open, self.found = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(f"{tag}.{dict(attrs).get('class', '')}")

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        while self.open and self.open.pop().partition(".")[0] != tag:
            pass

    def handle_data(self, data):
        if data.strip():
            self.found.append((tuple(self.open), " ".join(data.split())))

    def texts(self, *elements):
        return [text for within, text in self.found if all(each in within for each in elements)]


def test_the_page_is_one_file_that_asks_for_nothing(written):
    """It can be mailed or printed: no script, no address, every chart inside and whole."""
    _, html, _ = written
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not re.search(r"https?:|file:|@import", html)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src", "xlink:href"))
    assert page.tags.count("svg") == page.tags.count("figure") >= 5
    assert len(page.ids) == len(set(page.ids)), "ids of two charts collide"
    used = set(re.findall(r"url\(#([^)]+)\)", html)) | {v[1:] for n, v in page.attributes if n == "href"}
    assert used and used <= set(page.ids)


def test_the_order_is_verdict_chart_table_warnings_charts_long_tables(written):
    folder, html, markdown = written
    wanted = ('class="verdict"', 'id="chart-throughput"', '<table class="summary"', "All columns", "<h2>Warnings")
    wanted += ("<h2>Charts", 'id="chart-speedup"', "<h2>Where the wall clock went", "<h2>Environment")
    places = [html.index(text, html.index("</style>")) for text in wanted]
    assert places == sorted(places)
    answer = headline(load_set(folder))[0]
    assert Page(html).texts("p.verdict") == [answer] and f"**{answer}**" in markdown


def test_the_first_table_has_six_columns_and_the_rest_is_folded(written):
    folder, html, _ = written
    page = Page(html)
    assert page.texts("table.summary", "thead.") == [*report_tables.SUMMARY_COLUMNS]
    folded = {"val images", "status", "step p95 ms"}
    assert folded <= {*page.texts("details.", "thead.")}
    assert not folded & {text for at, text in page.found if "thead." in at and "details." not in at}
    rows = report_tables.summary_rows(results := load_set(folder), report_tables.table_rows(results))
    speeds = [float(row["images/s"].split()[0]) for row in rows[:-1]]
    assert speeds == sorted(speeds, reverse=True) and rows[-1]["strategy"] == "apex_ddp"
    (single,) = [row for row in rows if row["strategy"] == "single"]
    assert single["x single"] == "baseline" and single["same update?"] == "identical" and "[" not in single["memory MB"]


def test_what_each_strategy_has_of_a_warning_is_folded_below_its_cause(written):
    _, html, _ = written
    (summary,) = Page(html).texts("ul.warn", "summary.")
    details = Page(html).texts("ul.warn", "details.", "ul.")
    assert "2 of 4" in summary and [each.partition(":")[0] for each in details] == ["ddp", "horovod_ddp"]


def test_the_headline_says_what_the_intervals_say(written):
    folder, _, markdown = written
    results = load_set(folder)
    groups = {group.label: group for group in results.groups}
    best, second = sorted(("ddp", "horovod_ddp"), key=lambda label: -groups[label].throughput.value)
    over = results.speedups[best]
    assert (
        f"{best} has the highest mean of those in fp32: {over.value:.2f}x [{over.low:.2f}, {over.high:.2f}] single"
        in (markdown)
    )
    assert f"No difference seen between {best} and {second}" in markdown
    assert re.search(rf"slurm is 0\.3\dx \[0\.\d+, 0\.\d+\] {best}", markdown)
    assert "the fastest" not in " ".join(headline(results))


def test_the_table_has_the_measured_numbers(written):
    folder, _, _ = written
    results = load_set(folder)
    rows = {row["strategy"]: row for row in report_tables.table_rows(results)}
    ddp, group = rows["ddp"], next(group for group in results.groups if group.label == "ddp")
    assert ddp["images/s"] == f"{group.throughput.value:.1f} [{group.throughput.low:.1f}, {group.throughput.high:.1f}]"
    assert ddp["MFU %"] == f"{100 * group.throughput.value * 1e9 / (2 * 0.2e12):.1f}", "of a peak measured once"
    assert ddp["same update?"].startswith("yes: within 1.2e-07 (tolerance 1.0e-06)")
    assert rows["single"]["same update?"].startswith("yes: bit-identical")
    assert rows["slurm"]["same update?"].startswith("NO: relative difference 5.0e-01")
    assert rows["apex_ddp"]["same update?"] == "skipped: no GPU"
    assert rows["horovod_ddp"]["same update?"].startswith("no proof yet")
    assert rows["apex_ddp"]["status"] == "1 skipped" and rows["apex_ddp"]["images/s"] == ""


def test_the_comparison_of_top_1_is_a_family_of_the_page(tmp_path):
    for name, percent in (("equal", 50.0), ("other", 75.0)):
        add_runs(tmp_path / name, "single", 100, acc1=50.0, val_samples=132)
        add_runs(tmp_path / name, "ddp", 150, acc1=percent, val_samples=132)
    equal, other = (report.describe_error_rate(load_set(tmp_path / name)) for name in ("equal", "other"))
    assert "about 10 %" in equal and "about 15 %" in other


def test_efficiency_has_the_interval_of_the_speed_up(tmp_path):
    for strategy, speed, ranks in (("single", 100, 1), ("ddp", 180, 2)):
        add_runs(tmp_path, strategy, speed, world_size=ranks, batch_per_device=16, global_batch=16 * ranks)
    results = load_set(tmp_path)
    over = results.speedups["ddp"]
    (row,) = [row for row in report_tables.table_rows(results) if row["strategy"] == "ddp"]
    assert row["efficiency"] == f"{over.value / 2:.2f} [{over.low / 2:.2f}, {over.high / 2:.2f}]"


def test_the_commands_make_the_set_again(written):
    """Protects who repeats a measurement: the command that was typed, at the commit."""
    _, _, markdown = written
    line = next(line for line in markdown.splitlines() if line.startswith("./bench run"))
    assert "--config 'a b.yaml' --repeats 5 -- --seed 3" in line and "git checkout abc" in markdown.splitlines()


def test_one_round_and_no_gain_are_named_so(tmp_path):
    add_runs(tmp_path / "one", "single", 100, num_repeats=1, noise=0)
    add_runs(tmp_path / "one", "ddp", 150, num_repeats=1, noise=0)
    sentences = " ".join(headline(load_set(tmp_path / "one")))
    assert "1.50x as fast" in sentences and "without a verdict" in sentences and "fastest" not in sentences
    add_runs(tmp_path / "noise", "single", 100, noise=0.1)
    add_runs(tmp_path / "noise", "ddp", 104, noise=0)
    sentences = " ".join(headline(load_set(tmp_path / "noise")))
    assert "ddp has the highest mean of those in fp32: 1.0" in sentences and "fastest" not in sentences


def test_settings_that_differ_are_not_compared(tmp_path):
    for batch, speed in ((32, 100), (64, 150)):
        add_runs(tmp_path / str(batch), "ddp", speed, global_batch=batch)
    results = load_set(join_sets(tmp_path, "32", "64"))
    assert [group.label for group in results.groups] == ["ddp, global_batch 32", "ddp, global_batch 64"]
    sentences = " ".join(headline(results))
    assert "Not compared" in sentences and "slower" not in sentences


def test_no_ok_rows_is_a_sentence_and_exit_1(tmp_path, capsys):
    append_rows(tmp_path, "runs", [CPU | {"run_id": "a", "strategy": "ddp", "status": "failed", "reason": "planted"}])
    assert report.main(report.ReportOptions(tmp_path)) == 1
    assert "planted" in capsys.readouterr().err and not (tmp_path / "report.html").exists()


@pytest.mark.medium
def test_a_missing_set_is_exit_2_and_torch_is_not_needed(tmp_path):
    """The real command in an interpreter where importing torch fails; the set's tables are cut off in a line."""
    add_runs(tmp_path / "set", "ddp", 100, num_repeats=2)
    for path in (tmp_path / "set").glob("*.csv"):
        path.write_bytes(path.read_bytes()[:-20])
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    command = [sys.executable, "-m", "scripts.report.page", "--results"]
    done = [
        subprocess.run([*command, tmp_path / name], cwd=ROOT, env=env, capture_output=True, text=True)
        for name in ("set", "no")
    ]
    assert [each.returncode for each in done] == [0, 2], done[0].stderr + done[1].stderr
    assert len(done[1].stderr.splitlines()) == 1 and "./bench run" in done[1].stderr


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium; apt-get install chromium")
@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.medium
def test_the_page_is_no_wider_than_the_window(written, tmp_path, width):
    """Only tables and charts scroll sideways, never the page. Measured by a real browser."""
    _, html, _ = written
    html = html.replace(']</span></td><td class="text">', '], over bf16 single</span></td><td class="text">')
    cut_off = "[...document.querySelectorAll('.summary td')].filter(cell => cell.scrollWidth > cell.clientWidth).length"
    probe = f"<script>parent.document.title = [innerWidth, document.documentElement.scrollWidth, {cut_off}].join(' ')"
    inner = html.replace("</body>", f"{probe}</script></body>").replace("&", "&amp;").replace('"', "&quot;")
    path = tmp_path / "frame.html"
    path.write_text(f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{inner}"></iframe>')
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    inner_width, scroll_width, num_cut_off = map(
        int, re.search(r"<title>(\d+) (\d+) (\d+)</title>", done.stdout).groups()
    )
    assert inner_width == width and scroll_width <= width and num_cut_off == 0
