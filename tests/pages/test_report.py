"""The report: self-contained, escaped, right in its numbers and sentences, and readable on a phone.

.venv/bin/python -m pytest tests/pages/test_report.py
"""

import json
import os
import re
import shutil
import subprocess
import sys
import warnings
import xml.etree.ElementTree
from html.parser import HTMLParser

import matplotlib
import numpy
import pandas
import pytest
from matplotlib.figure import Figure
from result_sets import CPU, add_runs, join_sets
from support import ROOT, environment, recorded

from benchmarks.common.dist import device_peak
from benchmarks.common.store.results import append_rows, read_table
from scripts.pages import page as report
from scripts.pages import provenance as report_origin
from scripts.pages import report_tables
from scripts.pages.headline import headline
from scripts.sets import device_use as roofline
from scripts.sets.result_set import load_set
from scripts.sets.set_warnings import find_warnings, warnings_by_cause
from scripts.stats.families import NO_COMMON_ROUNDS, ratios_to_baseline
from scripts.studies.roofline import measured_peak

EVIL = "<script>alert(1)</script>|[x](javascript:y)"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A set with everything in it, its report.html and report.md. Its path and its texts are hostile."""
    folder = tmp_path_factory.mktemp("sets") / "a set & more"
    for strategy, speed in (("single", 100), ("ddp", 180), ("horovod_ddp", 180.5), (EVIL, 60)):
        unread = {"skipped_files": 3} if strategy in ("ddp", "horovod_ddp") else {}
        add_runs(folder, strategy, speed, device_name=f"CPU {EVIL}", num_windows=9, **unread)
    skipped = CPU | {"run_id": "x", "strategy": "apex_ddp", "status": "skipped", "reason": EVIL}
    append_rows(folder, "runs", [recorded(folder, skipped)])
    proof = {"run_id": "v", "steps": 20, "world_size": 2, "tolerance": 1e-6}
    identities = {group.strategy: group.identity for group in load_set(folder).groups}

    def of(strategy):  # the proof ran with the settings of the set, but for its length
        asked = identities[strategy].requested | {"steps": 10, "epochs": 2}
        return {"strategy": strategy, "asked": json.dumps(asked), "met": json.dumps(identities[strategy].resolved)}

    append_rows(
        folder,
        "equivalence",
        [
            proof | of("single") | {"max_relative_difference": 0.0, "bit_identical": True, "verdict": "ok"},
            proof | of("ddp") | {"max_relative_difference": 0.5, "bit_identical": False, "verdict": "failed"},
            proof | of("ddp") | {"max_relative_difference": 1.2e-7, "bit_identical": False, "verdict": "ok"},
            proof | of(EVIL) | {"max_relative_difference": 0.5, "verdict": "failed", "reason": EVIL},
            proof | of("apex_ddp") | {"verdict": "skipped", "reason": "no GPU"},
        ],
    )
    reported = {"images_per_s_per_core": 406.0, "num_windows": 1, "workers": 0}
    reported |= {"verdict": "the loader is not the limit, with a margin of 4.06"}  # of an older suite
    append_rows(
        folder,
        "loader",
        [
            reported | {"run_id": f"l{launch}", "what": what, "window": number, "images_per_s": speed + 0.1 * launch}
            for launch in (1, 2, 3, 4, 5)
            for number in (1, 2, 3)
            for what, speed in ((EVIL, 812), ("loader alone", 316), ("training alone", 100), ("both together", 75))
        ],
    )
    facts = {
        "num_cores": 2,
        "platform": EVIL,
        "variables": {"ARGS": "--seed 3", "CONFIG": "a b.yaml", "NPROC": "2"},
        "measured_peak": {"device_name": f"CPU {EVIL}", "threads": 1, "tflops": {"fp32": 0.2}},
        "collect_env": EVIL,
    }
    (folder / "environment.json").write_text(json.dumps(facts))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="constrained_layout")  # a chart of which nothing is seen
        assert report.main(report.ReportOptions(folder)) == 0
    return folder, (folder / "report.html").read_text(), (folder / "report.md").read_text()


class Page(HTMLParser):
    """Tags, ids, references and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.texts, self.attributes = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data):
        self.texts.append(data)


def test_the_page_is_one_file_that_asks_for_nothing(written):
    # Protects a report that is mailed or printed: no script, no address, every chart inside and whole.
    _, html, _ = written
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not re.search(r"https?:|file:|@import", html)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("href", "src", "xlink:href"))
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.tags.count("svg") == page.tags.count("figure") >= 5
    assert len(page.ids) == len(set(page.ids)), "ids of two charts collide"
    used = set(re.findall(r"url\(#([^)]+)\)", html)) | {v[1:] for n, v in page.attributes if n == "href"}
    assert used and used <= set(page.ids)
    assert ("name", "viewport") in page.attributes and "@media print" in html


def test_texts_from_data_cannot_become_markup(written):
    # A strategy, a device, a reason, a CSV cell: each holds a script and a Markdown link, and stays text.
    _, html, markdown = written
    assert "<script" not in html and "alert(1)" in "".join(Page(html).texts)
    markdown, _, after = markdown.split("```")  # in the fence, commands stand as they are
    assert "<script" not in markdown + after and not re.search(r"(?<!\\)\]\(", markdown + after)
    table = [line for line in markdown.splitlines() if line.startswith("| ")][0:7]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1, "a | in a name broke the table"


def test_the_headline_says_what_the_intervals_say(written):
    # The highest mean over single with its interval, what is not different, what is slower. Seen to fail where it was
    # called the fastest although no interval tells it from the second.
    folder, html, markdown = written
    groups = {group.label: group for group in load_set(folder).groups}
    best, second = sorted(("ddp", "horovod_ddp"), key=lambda label: -groups[label].throughput.value)
    over = load_set(folder).speedups[best]
    sentence = (
        f"{best} has the highest mean of those in fp32: {over.value:.2f}x [{over.low:.2f}, {over.high:.2f}] single"
    )
    assert sentence in markdown and sentence in " ".join(Page(html).texts)
    power = r"this data finds a ratio of 1\.\d\d with 80 % power \(nominal; the real power may be lower or higher\)"
    assert re.search(rf"No difference seen between {best} and {second}; {power}", markdown)
    assert "the fastest" not in " ".join(headline(load_set(folder)))
    assert (
        "(paired by round, Student's t, AR(1) standard errors, Sidak over 3 pairs)" in markdown
        and "Sidak over 6 pairs" in markdown
    )
    reported = "All else, in the first sentence of the page, too, is exploratory: 3 families of comparisons"
    assert "Where all is equal, at most about 5 % of pages" in markdown
    assert "Over all families, about 20 % of such pages at most show a false difference" in markdown
    assert reported in markdown and reported in " ".join(Page(html).texts)
    assert "simulated sets of 5 independent normal rounds with this set's own covariance" in markdown
    assert re.search(rf"alert\(1\).*is 0\.3\dx \[0\.\d+, 0\.\d+\] {best}", markdown)


class Outline(HTMLParser):
    """The texts of a page with the elements that each is in, and the header cells of its tables in their order."""

    VOID = ("meta", "br", "wbr", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(f"{tag}.{dict(attrs).get('class', '')}")

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        while self.open and self.open.pop().partition(".")[0] != tag:
            pass

    def handle_data(self, data):
        if data.strip():
            self.found.append((tuple(self.open), " ".join(data.split())))

    def texts(self, *elements):
        return [text for within, text in self.found if all(each in within for each in elements)]


def test_the_comparison_of_top_1_is_a_family_of_the_page(tmp_path):
    """Protects the page's error rate: whether two accuracies differ is a verdict, too. Mutant: it is not counted."""
    for name, percent in (("equal", 50.0), ("other", 75.0)):
        add_runs(tmp_path / name, "single", 100, acc1=50.0, val_samples=132)
        add_runs(tmp_path / name, "ddp", 150, acc1=percent, val_samples=132)
    equal, other = (report.describe_error_rate(load_set(tmp_path / name)) for name in ("equal", "other"))
    assert "1 family" in equal and "about 10 %" in equal
    assert "2 families" in other and "about 15 %" in other


def test_the_first_table_has_six_columns_and_the_rest_is_folded(written):
    """Protects the first screen: a table that fits it. Mutants: REPORT_COLUMNS in the first table; the table of all
    columns outside of <details>; rows in the order of their names."""
    folder, html, markdown = written
    page = Outline(html)
    assert page.texts("table.summary", "thead.") == [
        "strategy",
        "images/s",
        "x single",
        "same update?",
        "memory MB",
        "top-1 %",
    ]
    folded = {"val images", "status", "step p95 ms"}
    assert folded <= {*page.texts("details.", "thead.")}
    assert not folded & {text for at, text in page.found if "thead." in at and "details." not in at}
    table = markdown.splitlines()[6:]
    cells = [re.split(r"(?<!\\)\|", line) for line in table[2 : table.index("")]]
    speeds = [each[2].split()[0] for each in cells if "skipped" not in each[2]]
    assert len(speeds) == 4 and speeds == sorted(speeds, key=float, reverse=True)
    rows = report_tables.summary_rows(results := load_set(folder), report_tables.table_rows(results))
    assert rows[-1]["strategy"] == "apex_ddp" and rows[-1]["images/s"] == "1 skipped"
    (single,) = [row for row in rows if row["strategy"] == "single"]
    assert single["x single"] == "baseline" and single["same update?"] == "identical" and "[" not in single["memory MB"]


def test_the_verdict_and_the_chart_come_first_and_charts_before_long_tables(written):
    """Protects the reader's way: verdict, chart, table, warnings, other charts, long tables. Mutant: the tables of the
    studies above the charts."""
    _, html, markdown = written
    first = html.index("</style>")
    wanted = ('class="verdict"', 'id="chart-throughput"', '<table class="summary"', "All columns", "<h2>Warnings")
    wanted += ("<h2>Charts", 'id="chart-speedup"', "<h2>Where the wall clock went", "<h2>Environment")
    places = [html.index(text, first) for text in wanted]
    assert places == sorted(places)
    answer = headline(load_set(written[0]))[0]
    assert Outline(html).texts("p.verdict") == [answer] and markdown.splitlines()[4] == f"**{answer}**"


def test_nothing_is_wider_than_a_phone_by_its_style(written):
    """Protects a phone where no browser is at hand for the test below: every table but the first, whose columns have
    shares of the width, and every <pre> scrolls by itself and can be reached by the keyboard. Mutant: a table of a
    study without its region."""
    _, html, _ = written
    scrolling = r'<div class="scroll" tabindex="0" role="region" aria-label="[^"]+">\s*<table>'
    tables = re.findall(r"<table[^>]*>", html)
    assert len(tables) == len(re.findall(scrolling, html)) + 2 and tables.count('<table class="summary">') == 1
    assert all('tabindex="0"' in tag for tag in re.findall(r"<pre[^>]*>", html))
    style = html[: html.index("</style>")]
    assert ".summary { width: 100%; line-height: 1.3; table-layout: fixed" in style


def test_the_table_has_the_measured_numbers(written):
    # Throughput and interval, MFU against the peak of both ranks, the equivalence column, the skipped strategy.
    folder, _, _ = written
    results = load_set(folder)
    rows = {row["strategy"]: row for row in report_tables.table_rows(results)}
    ddp, group = rows["ddp"], next(group for group in results.groups if group.label == "ddp")
    assert ddp["images/s"] == f"{group.throughput.value:.1f} [{group.throughput.low:.1f}, {group.throughput.high:.1f}]"
    assert ddp["MFU %"] == f"{100 * group.throughput.value * 1e9 / (2 * 0.2e12):.1f}", "of a peak measured once"
    assert ddp["same update?"] == "yes: within 1.2e-07 (tolerance 1.0e-06); the proof differs in length"
    assert rows["single"]["same update?"] == "yes: bit-identical; the proof differs in length"
    assert rows[EVIL]["same update?"].startswith("NO: relative difference 5.0e-01")
    assert rows["apex_ddp"]["same update?"] == "skipped: no GPU", "the reason of the proof"
    assert rows["horovod_ddp"]["same update?"] == "no proof yet: ./bench verify"
    assert rows["apex_ddp"]["status"] == "1 skipped" and rows["apex_ddp"]["images/s"] == ""


def test_each_column_has_its_method(written):
    # Student's t over runs is not the method of top-1, nor of exposed communication, whose n are steps of one rank.
    _, html, markdown = written
    for text in (" ".join(Page(html).texts), markdown):
        assert "Exposed comm.: of the lowest rank, n = 20 accounted steps of 5 runs; ±: Student's t, 95 %" in text
        assert "Top-1: n = 1 seed, 5 runs" in text and "Wilson's 95 % interval for the images" in text
    reported = " ".join(html.split())
    assert "Of step p50 and p95, memory and J/image: Student's t over runs." in reported
    assert "where the peak was measured, over the least and the most of it, which is no 95 % interval." in reported
    assert "Of the others" not in reported and 'as said under "How sure is this?".' in reported


def test_the_loader_verdict_is_in_the_report(written):
    # The sentence of the rates beside it, not the one that was stored; and what it rests on.
    _, html, markdown = written
    for text in (" ".join(Page(html).texts), markdown):
        assert "loading costs 25 % [" in text and "95 % interval over launches; n = 5 launches." in text
        assert "images/s [95 % over launches]" in text.replace("\\", "")
        assert "406.0" in text and "812.3" in text and "margin of 4.06" not in text


def test_efficiency_has_the_interval_of_the_speed_up(tmp_path):
    # With a batch a device it is x single over the devices, and known no better than that.
    for strategy, speed, ranks in (("single", 100, 1), ("ddp", 180, 2)):
        add_runs(tmp_path, strategy, speed, world_size=ranks, batch_per_device=16, global_batch=16 * ranks)
    results = load_set(tmp_path)
    over = results.speedups["ddp"]
    (row,) = [row for row in report_tables.table_rows(results) if row["strategy"] == "ddp"]
    assert row["efficiency"] == f"{over.value / 2:.2f} [{over.low / 2:.2f}, {over.high / 2:.2f}]"


def test_commands_are_quoted_and_whole(written):
    # What is pasted into a shell is one word where it was one word.
    _, _, markdown = written
    line = next(line for line in markdown.splitlines() if line.startswith("make bench-all"))
    assert "CONFIG" not in line and "ARGS='--seed 3'" in line and "REPEATS=5" in line
    assert "# the set had these too, and no set may choose them for you: CONFIG" in markdown
    assert f"STRATEGIES='single {EVIL} ddp horovod_ddp'" in line


def test_one_round_and_no_gain_are_named_so(tmp_path):
    # No verdict from one run; single on top is not called slower.
    add_runs(tmp_path / "one", "single", 100, num_repeats=1, noise=0)
    add_runs(tmp_path / "one", "ddp", 150, num_repeats=1, noise=0)
    sentences = " ".join(headline(load_set(tmp_path / "one")))
    assert "1.50x as fast" in sentences and "without a verdict" in sentences and "fastest" not in sentences
    add_runs(tmp_path / "worse", "single", 100)
    add_runs(tmp_path / "worse", "ddp", 50)
    sentences = " ".join(headline(load_set(tmp_path / "worse")))
    assert "In fp32, no strategy was seen to be faster than one process" in sentences and "ddp is 0.5" in sentences
    add_runs(tmp_path / "noise", "single", 100, noise=0.1)
    add_runs(tmp_path / "noise", "ddp", 104, noise=0)
    sentences = " ".join(headline(load_set(tmp_path / "noise")))
    assert "ddp has the highest mean of those in fp32: 1.0" in sentences and "fastest" not in sentences
    assert "it was not shown to be faster than single" in sentences


def test_the_fastest_is_faster_than_all_others_of_its_precision(tmp_path):
    # Protects the word: every other one is excluded, and what computes in bf16 is not among them.
    for strategy, speed in (("single", 100), ("ddp", 180), ("slurm", 140)):
        add_runs(tmp_path, strategy, speed)
    add_runs(tmp_path, "ddp_amp", 300, precision="bf16")
    _, first, *_ = headline(load_set(tmp_path))
    assert re.match(r"On Test CPU, ddp is the fastest of those in fp32: 1\.\d\dx \[", first), first
    add_runs(tmp_path, "zero1", 179)  # the second is 1 % behind, with as much noise
    _, first, *_ = headline(load_set(tmp_path))
    assert " has the highest mean of those in fp32: 1." in first


def test_one_process_alone_is_named_so(tmp_path):
    """Protects the report of one GPU from `no strategy was seen to be faster`, where none was measured. Mutant: the
    sentence of a set with strategies."""
    add_runs(tmp_path / "plain", "single", 100)
    first, *_ = headline(load_set(tmp_path / "plain"))
    assert first.startswith("One process ran alone, so that no strategies are compared; it trains ")
    add_runs(tmp_path / "nhwc", "single", 120, memory_format="channels_last")
    first, *_ = headline(load_set(join_sets(tmp_path, "plain", "nhwc")))
    assert "in 2 variants, " in first and "the highest mean is that of single, channels_last, 1" in first
    add_runs(tmp_path / "plain", "ddp", 90)
    first, *_ = headline(load_set(tmp_path / "plain"))
    assert "alone" not in first


def test_settings_that_differ_are_not_compared(tmp_path):
    # A sweep over the batch: labels name the batch alone, and other batches are not called slower.
    for batch, speed in ((32, 100), (64, 150)):
        add_runs(tmp_path / str(batch), "ddp", speed, global_batch=batch)
    results = load_set(join_sets(tmp_path, "32", "64"))
    assert [group.label for group in results.groups] == ["ddp, global_batch 32", "ddp, global_batch 64"]
    sentences = " ".join(headline(results))
    assert "Not compared" in sentences and "slower" not in sentences and " is 0." not in sentences


WARNED = {
    "one round": {"num_repeats": 1},
    "unsteady": {"noise": 0.3},
    "other programs took 5 % of its cores' time or more in 5 of 5 runs": {"other_cpu_pct": 20},
    "5 % of its cores' time to other guests": {"noise": 0.3, "other_cpu_pct": 0, "steal_pct": 5},
    "other processes were on its GPUs in 5 of 5 runs": {"other_gpu_processes": 1},
    "oversubscribed": {"oversubscribed": True},
    "busy before the first run": {"load_average": 1.9},
    "governor was powersave": {"governor": "powersave"},
    "which no commit has": {"dirty": True},
    "could not be read": {"skipped_files": 3},
    "MFU over 100 %": {"flops_per_image": 1e13},
    "wait for images in 20 % of their time": {"device": "cuda"},
    "may keep DDP from hiding its gradient exchange": {"backend": "nccl", "torch": "2.15.0"},
}


@pytest.mark.parametrize("words", WARNED)
def test_each_warning_has_its_cause(tmp_path, words):
    # The rule fires on a set with the fault, with a remedy, and on nothing else.
    facts = {"num_cores": 2, "measured_peak": {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}}}
    (tmp_path / "environment.json").write_text(json.dumps(facts))
    results = load_set(add_runs(tmp_path, "ddp", 100, **WARNED[words]))
    found = find_warnings(results)
    assert len(found) == 1 and words in found[0] and (";" in found[0] or ":" in found[0])


@pytest.mark.parametrize("version, variables", [("2.9.1", ""), ("2.15.0", "TORCH_DIST_USE_NCCL2=0")])
def test_no_warning_of_the_older_nccl_group(tmp_path, version, variables):
    """Protects sets of torch before 2.15, and those with the variable. Mutants: versions compared as text; no look at
    the variables."""
    results = load_set(add_runs(tmp_path, "ddp", 100, backend="nccl", torch=version))
    results.groups[0].identity.resolved["variables"] = variables
    assert find_warnings(results) == []


def test_warnings_are_grouped_by_cause_with_a_count(tmp_path):
    """Protects the page from a sentence a strategy: of 13 nobody reads one. Each cause has its number of strategies and
    its most; what each strategy has stays below it. Mutants: no group; the count of causes in place of strategies; the
    share of the first strategy."""
    for strategy, row in (
        ("single", {"steal_pct": 3}),
        ("ddp", {"steal_pct": 9, "other_cpu_pct": 20}),
        ("slurm", {"steal_pct": 2}),
    ):
        add_runs(tmp_path, strategy, 100, noise=0.3, **{"other_cpu_pct": 0} | row)
    add_runs(tmp_path, "horovod_ddp", 100, steal_pct=0, other_cpu_pct=0)
    results = load_set(tmp_path)
    (unsteady,) = [each for each in warnings_by_cause(results) if "unsteady" in each.summary]
    assert unsteady.summary == (
        "unsteady windows: 3 of 4 configurations; steal in all of them, up to 9 % of the cores' time: use cores of "
        "your own; other programs in 1 of them, up to 20 % of the cores' time: close them; where runs differ, "
        "take more rounds; where windows of a run do, longer ones (--window-steps)."
    )
    assert [each.partition(":")[0] for each in unsteady.details] == ["single", "ddp", "slurm"]
    assert find_warnings(results) == [text for each in warnings_by_cause(results) for text in each.sentences]


def test_the_page_folds_what_each_strategy_has_below_its_cause(written):
    """Protects the list of warnings: a line a cause, the strategies folded. Mutant: every sentence in the list."""
    _, html, markdown = written
    summary, page = "files that could not be read: 2 of 4 configurations; fix the data set.", Outline(html)
    details = [f"{name}: up to 3 files a run could not be read; fix the data set." for name in ("ddp", "horovod_ddp")]
    assert page.texts("ul.warn", "summary.") == [summary]
    assert page.texts("ul.warn", "details.", "ul.") == details
    assert "\n".join([f"- {summary}", *(f"  - {each}" for each in details), ""]) in markdown


def test_a_clean_set_has_no_warnings(tmp_path):
    # A warning that is always there is read by nobody.
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    assert find_warnings(load_set(add_runs(tmp_path, "ddp", 100))) == []


def test_a_busy_machine_is_recognised_by_the_time_that_others_took(tmp_path):
    # Not by the load average after a run of the suite's own ranks, where what others took was recorded: a set of 60
    # runs on a quiet machine was refused for one load of 3.1 after a Slurm job.
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    add_runs(tmp_path, "ddp", 100, num_repeats=10)
    results = load_set(tmp_path)

    def busy(loads, others):
        table = read_table(tmp_path, "runs").assign(load_average=loads, other_cpu_pct=others)
        table.to_csv(tmp_path / "runs.csv", index=False)
        return [text for text in find_warnings(load_set(tmp_path)) if "busy" in text]

    assert len(results.ok_runs) == 10
    loads, one, two = [0.2, *[3.1] * 9], [12.0, *[1.0] * 9], [12.0, 5.0, *[1.0] * 8]
    assert busy(loads, one) == []
    (found,) = busy(loads, two)
    assert "5 % of its cores' time or more in 2 of 10 runs, up to 12 %" in found
    assert busy([3.0, *[0.2] * 9], [1.0] * 10) == []  # the first load is that of the set-up, which ended before
    (found,) = busy(loads, None)  # an older suite: the load is all there is
    assert "busy before 9 later runs" in found


def test_the_load_of_another_machine_is_no_busy_machine(tmp_path):
    """Protects sets of Slurm alone from a warning about the node that submits: its load is not that of the ranks'
    nodes, and what others took there is unknown. Mutant: every load counts."""
    (tmp_path / "environment.json").write_text(json.dumps({"num_cores": 2}))
    add_runs(tmp_path, "slurm", 100, load_average=7, steal_pct=0)
    assert find_warnings(load_set(tmp_path)) == []


def test_strategies_of_another_day_are_named(tmp_path):
    # `make bench-ddp RESULTS=old` a week later pairs its rounds 1 to 3 with last week's, by their numbers.
    for strategy, day in (("single", 1), ("slurm", 1), ("ddp", 8)):
        add_runs(tmp_path, strategy, 100, started_at=f"2026-01-0{day}T03:04:05+00:00")
    (found,) = find_warnings(load_set(tmp_path))
    assert found.startswith("ddp: runs of another session") and "the day's effect is unknown" in found
    over = ratios_to_baseline("single", {group.label: group.sample for group in load_set(tmp_path).groups})
    assert over["ddp"].why == NO_COMMON_ROUNDS and over["slurm"].why != NO_COMMON_ROUNDS


def test_windows_that_stand_out_are_named_by_place(tmp_path):
    # hyperfine's rules: a slow first window is warm-up, a slow later one is an outlier.
    add_runs(tmp_path, "ddp", 100)
    lines = (tmp_path / "windows.csv").read_text().splitlines()

    def slowed(number):
        name, place, images, seconds, rest = lines[number].split(",")
        return ",".join((name, place, images, str(1.4 * float(seconds)), rest))

    for number, words in (
        (1, "first window is slow in 1 of 5 runs, up to 1.4 times the median"),
        (4, "1 of 25 windows far from the median"),
    ):
        changed = [slowed(n) if n == number else line for n, line in enumerate(lines)]
        (tmp_path / "windows.csv").write_text("\n".join(changed) + "\n")
        found = [text for text in find_warnings(load_set(tmp_path)) if "unsteady" not in text]
        assert len(found) == 1 and words in found[0], found


def test_throttling_is_read_from_the_telemetry(tmp_path):
    # A quarter of the GPU's samples were held down by heat.
    results = load_set(add_runs(tmp_path, "ddp", 100, num_repeats=2))
    telemetry = results.table("telemetry")
    telemetry.loc[(telemetry.device == "gpu0") & (telemetry.t_s == 0.5), "throttle"] = "thermal"
    found = [text for text in find_warnings(results) if "held down" in text]
    assert len(found) == 1 and "(thermal) in 25 %" in found[0]


def test_throttling_is_that_of_the_gpus_that_a_run_uses(tmp_path):
    """Three more GPUs are sampled and idle. Mutant: the mean over all GPUs that can be seen, 25 %."""
    results = load_set(add_runs(tmp_path, "single", 100, num_repeats=2, world_size=1))
    telemetry = results.table("telemetry")
    used = telemetry[telemetry.device == "gpu0"]
    telemetry.loc[used.index, "throttle"] = "power"
    idle = [used.assign(device=f"gpu{number}", throttle="") for number in (1, 2, 10)]
    results.tables["telemetry"] = pandas.concat([telemetry, *idle], ignore_index=True)
    (found,) = [text for text in find_warnings(results) if "held down" in text]
    assert "(power) in 100 %" in found


def test_unsteady_windows_beside_other_programs_name_them(tmp_path):
    results = load_set(add_runs(tmp_path, "ddp", 100, noise=0.3, other_cpu_pct=20, steal_pct=0))
    (found,) = [text for text in find_warnings(results) if "unsteady" in text]
    assert "other programs took up to 20 % of its cores' time: close them" in found and "steal" not in found


@pytest.mark.parametrize(
    ("counters", "words"),
    [
        ({}, "; not recorded: steal, other programs, clocks; the cause is unknown: close other programs; "),
        (
            {"other_cpu_pct": 4.7, "steal_pct": 0.1},
            "; steal was at most 0.1 %, other programs took at most 4.7 % of its cores' time; not recorded: "
            "clocks; the cause is unknown: try a machine of your own; ",
        ),
    ],
)
def test_an_unknown_cause_says_what_the_counters_were(tmp_path, counters, words):
    """Protects from a cause that nobody looked for, or that was below its limit, as one that "was not seen". Mutant: a
    counter without values among the others."""
    (found,) = find_warnings(load_set(add_runs(tmp_path, "ddp", 100, noise=0.3, **counters)))
    assert words in found


def test_a_clock_that_was_lower_is_named(tmp_path):
    # Of two strategies the one whose cores had less: unsteady windows by themselves do not say why.
    for name in ("single", "ddp"):
        add_runs(tmp_path, name, 100, noise=0.3, steal_pct=0, other_cpu_pct=0)
    results = load_set(tmp_path)
    telemetry = results.table("telemetry")
    telemetry["clock_mhz"] = 3000.0
    found = find_warnings(results)
    assert found and not [text for text in found if "MHz" in text]
    assert "each run's mean clock was at least 100.0 % of the fastest run's; the cause is unknown" in found[0]
    telemetry.loc[telemetry.run_id == "ddp-1", "clock_mhz"] = 2400.0
    (found,) = [text for text in find_warnings(results) if "MHz" in text]
    assert found.startswith("ddp: unsteady") and "2400 MHz, another's 3000" in found


def test_no_ok_rows_is_a_sentence_and_exit_1(tmp_path, capsys):
    # With the reason of what failed, and without a file that looks like a report.
    append_rows(tmp_path, "runs", [CPU | {"run_id": "a", "strategy": "ddp", "status": "failed", "reason": "planted"}])
    assert report.main(report.ReportOptions(tmp_path)) == 1
    assert "planted" in capsys.readouterr().err and not (tmp_path / "report.html").exists()


@pytest.mark.medium
def test_a_missing_set_is_exit_2_and_torch_is_not_needed(tmp_path):
    # The real command in an interpreter where importing torch fails.
    add_runs(tmp_path / "set", "ddp", 100, num_repeats=1)
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')\n")
    env = environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)]))
    command = [sys.executable, "-m", "scripts.pages.page", "--results"]
    done = [
        subprocess.run([*command, tmp_path / name], cwd=ROOT, env=env, capture_output=True, text=True)
        for name in ("set", "no")
    ]
    assert [each.returncode for each in done] == [0, 2], done[0].stderr + done[1].stderr
    assert len(done[1].stderr.splitlines()) == 1 and "./bench run" in done[1].stderr


@pytest.mark.medium
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_half_written_files_make_a_report_all_the_same(tmp_path, seed):
    # A full disk or a kill cuts any file anywhere; lines that are not whole are left out.
    add_runs(tmp_path, "ddp", 100)
    append_rows(tmp_path, "equivalence", [{"run_id": "v", "strategy": "ddp", "verdict": "ok"}] * 3)
    (tmp_path / "environment.json").write_text('{"num_cores": 2}')
    rng = numpy.random.default_rng(seed)
    for path in sorted([*tmp_path.glob("*.csv"), tmp_path / "environment.json"]):
        data = path.read_bytes()
        path.write_bytes(data[: rng.integers(len(data) * 4 // 5, len(data))])
    assert report.main(report.ReportOptions(tmp_path)) == 0


def test_published_peaks_and_what_they_are_not():
    # Dense figures of NVIDIA's data sheets; a part of a GPU, or another GPU, is not the GPU of the table.
    assert roofline.peak_tflops("NVIDIA H200", "tf32", 8, {})[0] == 494.7
    assert roofline.peak_tflops("Tesla V100-PCIE-16GB", "apex-O1", 8, {})[0] == 112.0
    assert roofline.peak_tflops("Tesla V100-SXM2-16GB", "apex-O0", 8, {})[0] == 15.7
    assert roofline.peak_tflops("NVIDIA A100-SXM4-80GB", "bf16", 8, {})[0] == 312.0
    for name, precision in (
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "fp32"),
        ("NVIDIA GeForce RTX 4090 D", "fp32"),
        ("NVIDIA L40", "fp32"),
        ("Tesla T4", "bf16"),
        ("Test CPU", "fp32"),
    ):
        assert roofline.peak_tflops(name, precision, 8, {})[0] is None


def test_mfu_counts_devices_and_threads(tmp_path):
    # 100 images/s x 1 GFLOP over 2 ranks of 1 thread; with 4 ranks on 2 cores the peak is that of 2.
    facts = {"num_cores": 2, "measured_peak": {"device_name": "Test CPU", "threads": 2, "tflops": {"fp32": 0.4}}}
    for name, row, mfu in (("two", {}, 0.25), ("four", {"world_size": 4}, 0.25), ("one", {"world_size": 1}, 0.5)):
        use = roofline.device_use(load_set(add_runs(tmp_path / name, "ddp", 100, noise=0, **row)).groups[0], facts)
        assert use.tflops == pytest.approx(0.1) and use.mfu == pytest.approx(mfu)
    gpu = {"device": "cuda", "device_name": "NVIDIA H200", "precision": "bf16", "world_size": 8}
    use = roofline.device_use(load_set(add_runs(tmp_path / "gpu", "ddp", 1e4, noise=0, **gpu)).groups[0], {})
    assert use.mfu == pytest.approx(1e4 * 1e9 / (8 * 989.4e12))


def test_the_interval_of_mfu_has_the_peaks_spread(tmp_path):
    # Three peaks of one set gave 24.7 where the interval was [25.6, 26.9]. Mutants: the throughput's interval alone;
    # an interval where the peak was measured once.
    group = load_set(add_runs(tmp_path / "a set", "ddp", 100)).groups[0]
    once = {"device_name": "Test CPU", "threads": 1, "tflops": {"fp32": 0.2}}
    assert roofline.device_use(group, {"measured_peak": once}).mfu_bounds is None
    passes = {"passes": [{"fp32": 0.16}, {"fp32": 0.2}]}
    speed, (low, high) = group.throughput, roofline.device_use(group, {"measured_peak": once | passes}).mfu_bounds
    assert (low, high) == pytest.approx((speed.low * 1e9 / 0.4e12, speed.high * 1e9 / 0.32e12))
    inner = once | {"tflops": {"fp32": 0.25}}
    (tmp_path / "a set" / "sweeps").mkdir()
    for folder, peak in ((".", once), ("sweeps", inner)):
        (tmp_path / "a set" / folder / "environment.json").write_text(json.dumps({"measured_peak": peak}))
    results = load_set(tmp_path / "a set")
    (low, _) = roofline.device_use(group, results.environment, results.other_peaks).mfu_bounds
    assert low == pytest.approx(speed.low * 1e9 / 0.5e12)


@pytest.mark.medium
def test_a_peak_is_measured_on_the_machine_of_the_set_only(tmp_path, capsys, monkeypatch):
    # A real product on this machine: refused for a set of another device, written for a set of this one.
    from benchmarks.common.system.errors import UserError

    monkeypatch.setattr(device_peak, "MEASURE_S", 0.001)
    add_runs(tmp_path / "other", "ddp", 100)
    with pytest.raises(UserError, match="measure there"):
        measured_peak.main(measured_peak.PeakOptions(tmp_path / "other"))
    peak = device_peak.measure_peak()
    add_runs(tmp_path / "own", "ddp", 100, device_name=peak["device_name"])
    assert measured_peak.main(measured_peak.PeakOptions(tmp_path / "own")) == 0
    written = json.loads((tmp_path / "own" / "environment.json").read_text())["measured_peak"]
    assert written["tflops"]["fp32"] > 0 and written["device_name"] == peak["device_name"]
    assert f"fp32 {written['tflops']['fp32']:.4g} TFLOP/s" in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium; apt-get install chromium")
@pytest.mark.parametrize("width", [390, pytest.param(1200, marks=pytest.mark.medium)])
@pytest.mark.medium
def test_the_page_is_no_wider_than_the_window(written, tmp_path, width):
    """Protects a phone: only tables and charts scroll sideways, never the page. And a ratio over bf16 from lying on the
    next column of the first table. Measured by a real browser. Mutant: `white-space: nowrap` of an interval there."""
    _, html, _ = written
    html = html.replace(']</span></td><td class="text">', '], over bf16 single</span></td><td class="text">')
    cut_off = "[...document.querySelectorAll('.summary td')].filter(cell => cell.scrollWidth > cell.clientWidth).length"
    probe = f"<script>document.title = [innerWidth, document.documentElement.scrollWidth, {cut_off}].join(' ')</script>"
    frame = f'<iframe id="page" style="width: {width}px; height: 900px; border: 0" srcdoc="{{page}}"></iframe>'
    inner = html.replace("</body>", probe.replace("document.title =", "parent.document.title =") + "</body>")
    path = tmp_path / "frame.html"
    path.write_text(frame.format(page=inner.replace("&", "&amp;").replace('"', "&quot;")), encoding="utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000", "--dump-dom", f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    inner_width, scroll_width, num_cut_off = map(
        int, re.search(r"<title>(\d+) (\d+) (\d+)</title>", done.stdout).groups()
    )
    assert inner_width == width and scroll_width <= width and num_cut_off == 0


def test_the_report_draws_sweeps_and_scaling_that_the_set_has(tmp_path):
    # The charts of the studies sweep and scaling are in the report, and their commands under "do it again".
    for ranks, speed in ((1, 100), (2, 170)):
        add_runs(tmp_path / f"r{ranks}", "ddp", speed, world_size=ranks)
    (tmp_path / "scaling.csv").write_text("strategy,mode,ranks\nddp,strong,1\n")
    results = load_set(join_sets(tmp_path, "r1", "r2"))
    assert "scaling_ddp" in report.report_figures(results)
    assert "./bench study scaling --strategy ddp --ranks 1 2 --repeats 5" in report_origin.reproduction_commands(
        results
    )


def test_chart_names_from_the_data_cannot_leave_the_folder(tmp_path):
    # A strategy named ../../x in a CSV from elsewhere must not choose where a file is written.
    for ranks in (1, 2):
        add_runs(tmp_path / f"r{ranks}", "../../x", 100 * ranks, world_size=ranks)
    names = report.report_figures(load_set(join_sets(tmp_path, "r1", "r2")))
    assert all(re.fullmatch(r"[\w-]+", name) for name in names) and any(name.startswith("scaling") for name in names)


def test_a_text_in_a_chart_takes_nothing_away():
    """Protects a warning in a chart from a label before it that ends in ` xmlns="`. Mutant: the whole file searched,
    not its tags."""
    figure = Figure()
    for height, text in ((0.1, 'label xmlns="'), (0.5, "a warning"), (0.7, 'url(#x) href="#y" id="z"')):
        figure.text(0.1, height, text)
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        found = xml.etree.ElementTree.fromstring(report.inline_svg(figure, "chart", "label"))
    texts = ["".join(each.itertext()) for each in found.iter() if each.tag == "text"]
    assert {'label xmlns="', "a warning", 'url(#x) href="#y" id="z"'} <= {*texts}
