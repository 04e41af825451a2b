"""./bench trend: days, versions and hardware are marked, no two days are compared, and a foreign set runs nothing.

.venv/bin/python -m pytest tests/studies/test_trend.py
"""

import dataclasses
import re

import pytest
from result_sets import change, write_set

from scripts.options.set_options import TrendOptions
from scripts.publish.passive_page import find_active
from scripts.publish.readme import PUBLISHED
from scripts.sets.result_set import load_set
from scripts.studies.trend import analysis, trend
from scripts.studies.trend.analysis import UNKNOWN_DAY, groups_by_hardware_and_work, in_order_of_days
from scripts.studies.trend.chart import trend_chart

EVIL = "<img src=x onerror=alert(1)>\"'&\x1b[31m"
STEERS = "a\x1b[2J\r\u202e\u2066\x9b"


def at(day):
    """What moves a set to a day."""
    return lambda frame: frame.assign(started_at=frame.started_at.str.replace("2026-11-21", day))


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Two sets of one night, one of the next with another torch, and one of other hardware; not in their order."""
    folder = tmp_path_factory.mktemp("sets")
    for name, day, columns in (
        ("third", "2026-11-23", {"torch": "2.16.0", "commit": "def"}),
        ("first", "2026-11-22", {}),
        ("second", "2026-11-22", {}),
        ("gpu", "2026-11-22", {"device_name": "H100", "device": "cuda"}),
    ):
        change(write_set(folder / name, precision="fp32", **columns), "runs", at(day))
    (folder / "second" / "runs.csv").write_text((folder / "second" / "runs.csv").read_text().replace("T0", "T1"))
    return [folder / name for name in ("third", "first", "second", "gpu")]


def charts(paths):
    parts = groups_by_hardware_and_work(in_order_of_days([load_set(path) for path in paths]))
    return {about: trend_chart(about, pairs).axes[0] for about, pairs in parts.items()}


@pytest.mark.medium
def test_hardware_shares_no_axis_and_days_are_in_order(nights):
    """Protects from a step in a curve that is another machine. Mutants: the order as typed; one panel for all."""
    drawn = charts(nights)
    assert [about.split(";")[0] for about in drawn] == ["Test CPU", "H100"]
    cpu, gpu = drawn.values()
    names = [label.get_text() for label in cpu.get_xticklabels()]
    assert names == ["2026-11-22\nabc", "2026-11-22\nabc", "2026-11-23\ndef"] and len(gpu.get_xticklabels()) == 1


@pytest.mark.medium
def test_no_two_days_are_joined(nights):
    """Protects the rule of two days. Mutant: a line through the points of a strategy."""
    cpu, _ = charts(nights).values()
    assert len(cpu.containers) == 6 and all(len(bar.lines[0].get_xdata()) == 1 for bar in cpu.containers)
    joined = [line for line in cpu.lines if len({*line.get_xdata()}) > 1]
    assert joined == []


@pytest.mark.medium
def test_versions_are_marked_where_they_change(nights, tmp_path):
    """Protects the reader from a new torch that nobody mentions. Mutant: each set compared with the first."""
    later = write_set(tmp_path / "fourth", precision="fp32", torch="2.16.0")
    change(later, "runs", at("2026-11-24"))
    cpu, gpu = charts([*nights, later]).values()
    assert [(text.get_text(), text.xy[0]) for text in cpu.texts] == [("torch 2.16.0", 1.5)] and not gpu.texts
    assert len(cpu.patches) == 1, "a band for the second day"


def test_labels_of_many_nights_do_not_lie_on_each_other(nights):
    """Protects a page of months. Mutant: a label for each set."""
    (pairs,) = groups_by_hardware_and_work(in_order_of_days([load_set(nights[1])])).values()
    many = [(dataclasses.replace(each), group) for _ in range(60) for each, group in pairs[:1]]
    assert 12 < len(trend_chart("", many).axes[0].get_xticks()) <= 25


def test_a_set_without_times_comes_last(tmp_path, nights):
    undated = write_set(tmp_path / "undated", precision="fp32")
    change(undated, "runs", lambda frame: frame.assign(started_at=""))
    days = [each.day for each in in_order_of_days([load_set(path) for path in (undated, nights[0])])]
    assert days == ["2026-11-23", UNKNOWN_DAY]


@pytest.mark.medium
def test_the_page_has_each_set_and_compares_none(nights, tmp_path, capsys):
    """Protects the page's promise: figures are those of each set, and the only ratios are within one."""
    output = tmp_path / "trend.html"
    assert trend.main(TrendOptions(tuple(nights), output)) == 0
    assert "4 sets of 2 days" in capsys.readouterr().out
    html = output.read_text()
    assert "No two days are compared on this page" in html and html.count("<svg ") == 2
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows if "<td" in row]
    assert [row[1] for row in cells] == ["first"] * 2 + ["second"] * 2 + ["third"] * 2 + ["gpu"] * 2
    ddp = load_set(nights[0]).timed_groups_of("ddp")[0].timed_throughput
    assert f"{ddp.value:.1f} [{ddp.low:.1f}, {ddp.high:.1f}]" in html
    assert not re.search(r"faster|slower|trend line", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))


@pytest.mark.medium
def test_published_sets_make_a_page(tmp_path):
    output = tmp_path / "trend.html"
    assert trend.main(TrendOptions(tuple(sorted(PUBLISHED.glob("cpu*"))), output)) == 0
    assert find_active(output) == ""


def test_a_foreign_set_runs_nothing(tmp_path):
    """Protects the reader of a page with somebody else's set. Mutant: autoescape off."""
    write_set(tmp_path / "set", device_name=EVIL, torch=EVIL, commit=EVIL)
    output = tmp_path / "trend.html"
    assert trend.main(TrendOptions((tmp_path / "set",), output)) == 0
    html = output.read_text()
    assert "&lt;img" in html and not re.search("<img|<script|\x1b", html)


def test_no_name_of_a_foreign_set_steers_a_terminal_or_a_browser(tmp_path, monkeypatch):
    """Protects whoever prints the page: the names of a set, of its strategies and its versions are somebody else's. A
    cell that nobody has made printable changes nothing. Mutant: the page as it stands."""
    monkeypatch.setattr(trend, "printable", lambda text: text)
    monkeypatch.setattr(analysis, "printable", lambda text: text)
    one = write_set(tmp_path / "set", device_name=STEERS, torch=STEERS, commit=STEERS)
    one.rename(tmp_path / f"set{STEERS}")
    html = trend.render_trend(in_order_of_days([load_set(tmp_path / f"set{STEERS}")]))
    assert "a?[2J" in html
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", html)


def test_sets_without_runs_are_a_sentence(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert trend.main(TrendOptions((tmp_path / "empty",), tmp_path / "trend.html")) == 1
    assert "nothing to show" in capsys.readouterr().err and not (tmp_path / "trend.html").exists()
