"""The tables: no row is lost, torn, doubled or run by a spreadsheet, whatever stops a writer."""

import csv
import json
import math
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from benchmarks.common import rows as tables
from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows, format_cell, read_table
from scripts.results.settings import add_settings, settings_hash
from scripts.runner.loop import lock_result_set


def test_what_is_written_is_read(tmp_path):
    """Numbers are numbers, text is text on one line, None is an empty cell and never 0."""
    row = {"run_id": "a", "exit_code": None, "repeat": 0, "wall_s": 1 / 3, "parallel": False, "dirty": True}
    append_rows(tmp_path, "runs", [row | {"reason": 'it said "no",\nthen left\r\n\tsomething'}])
    append_rows(tmp_path, "runs", [{"run_id": "b"}])
    frame = read_table(tmp_path, "runs")
    assert [*frame.columns] == [*TABLES["runs"]] and [*frame["run_id"]] == ["a", "b"]
    first = frame.iloc[0]
    assert first["reason"] == 'it said "no", then left something'
    assert (first["repeat"], first["parallel"], first["dirty"]) == (0, "no", "yes")
    assert first["wall_s"] == pytest.approx(1 / 3, rel=1e-8)
    assert frame[["exit_code", "images_per_s"]].isna().all(axis=None)
    assert format_cell(0.1 + 0.2) == "0.3" and format_cell(123456789.25) == "123456789" and format_cell(1e-7) == "1e-07"


def test_an_unknown_column_raises_and_writes_nothing(tmp_path):
    """A misspelt measurement would quietly be an empty column."""
    with pytest.raises(ValueError, match="image_per_s"):
        append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}, {"run_id": "a", "image_per_s": 3}])
    assert read_table(tmp_path, "windows").empty


def test_texts_of_others_do_nothing_in_a_spreadsheet_or_a_terminal(tmp_path):
    """Promise 3 of SECURITY.md: a file name or a flag may start with =, or hold escape codes."""
    for text in ("=cmd()", "+1", "@SUM(A1)", "-2", "'=1"):
        append_rows(tmp_path, "runs", [{"run_id": "a", "options": text, "val_loss": -1.5}])
        with open(tmp_path / "runs.csv", newline="") as file:
            *_, row = csv.DictReader(file)
        assert (row["options"], row["val_loss"]) == ("'" + text, "-1.5")
        assert read_table(tmp_path, "runs").options.iloc[-1] == text, "readers get the text back"
    assert format_cell("a\x1b]0;owned\x07\x9b.JPEG") == "a?]0;owned??.JPEG"
    (tmp_path / "runs.csv").write_text("run_id,strategy\nx,ddp\x1b]0;owned\x07\n")
    assert [*read_table(tmp_path, "runs").strategy] == ["ddp?]0;owned?"]


@pytest.mark.parametrize("damage", ['a,"9\n', "a,9,9,9,9,9\n", "a,9,\xff\xfe\n", 'a,2,"8', "a,2,8,1.5,5.3", "a"])
def test_a_damaged_line_and_half_a_line_of_a_killed_writer_cost_no_other_row(tmp_path, capsys, damage):
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}])
    with open(tmp_path / "windows.csv", "ab") as file:
        file.write(damage.encode("latin-1"))
    assert [*read_table(tmp_path, "windows")["window"]] == [0]
    assert "windows.csv: 1 of its lines" in capsys.readouterr().err
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}])
    assert [*read_table(tmp_path, "windows")["window"]] == [0, 1]


def test_a_set_of_an_older_version_is_read_and_not_continued(tmp_path):
    text = 'run_id,strategy,reason,not_ours\nold,ddp,"a, b",9\n'
    (tmp_path / "runs.csv").write_text(text)
    (row,) = read_table(tmp_path, "runs").itertuples()
    assert (row.run_id, row.reason, row.settings) == ("old", "a, b", "") and math.isnan(row.acc1)
    with pytest.raises(UserError, match=r"runs\.csv"):
        append_rows(tmp_path, "runs", [{"run_id": "new"}])
    with pytest.raises(UserError, match=r"runs\.csv"), lock_result_set(tmp_path):
        pass  # before hours of training
    assert (tmp_path / "runs.csv").read_text() == text


def test_settings_are_added_once_and_read_back_whole(tmp_path):
    """Protects the identity of runs: a row a hash, and JSON that no rule for cells has changed."""
    requested = {"strategy": "ddp", "data": "a  b   c", "names": ["=1", 'say "no"', "\n\udcff"], "seed": None}
    first = add_settings(tmp_path, requested)
    assert add_settings(tmp_path, requested | {"config": "another name"}) == first == settings_hash(requested)
    second = add_settings(tmp_path, requested, {"device_name": "two  spaces"})
    rows = read_table(tmp_path, "settings")
    assert [*rows.settings] == [first, second] and {*rows.asked_hash} == {first} != {second}
    assert [json.loads(text) for text in rows.asked] == [requested, requested]
    assert rows.met[0] == "" and json.loads(rows.met[1]) == {"device_name": "two  spaces"}


# --- writers that fail, wait, meet or are killed ----------------------------------------------------------------------


def test_a_full_disk_leaves_the_rows_before_it(tmp_path, monkeypatch):
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}])
    before = (tmp_path / "windows.csv").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}])
    assert (tmp_path / "windows.csv").read_bytes() == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "below").write_text("a file, not a folder")
    with pytest.raises(UserError, match="below/a set"):
        append_rows(tmp_path / "below" / "a set", "runs", [{"run_id": "a"}])


WRITER = """
import sys
from pathlib import Path
from benchmarks.common.rows import append_rows
from scripts.results.settings import add_settings
for n in range(int(sys.argv[3])):
    append_rows(Path(sys.argv[1]), "windows", [{"run_id": sys.argv[2], "window": n}] * 2)
    if n < 20:
        add_settings(Path(sys.argv[1]), {"n": n})
"""


def test_two_writers_lose_no_row_and_double_no_settings(tmp_path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, name, "40"], cwd=ROOT) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    rows = read_table(tmp_path, "windows")
    assert sorted(zip(rows.run_id, rows.window, strict=True)) == [
        (name, n) for name in "ab" for n in range(40) for _ in "12"
    ]
    settings = read_table(tmp_path, "settings").settings
    assert len(settings) == len({*settings}) == 20


def test_a_killed_writer_leaves_whole_rows(tmp_path, capsys):
    """SIGKILL at any moment: the pairs of rows are there, both or neither, and nobody holds the lock any more."""
    for n in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, "a", "100000"], cwd=ROOT)
        while not (tmp_path / "windows.csv").exists():
            time.sleep(0.01)
        time.sleep(0.5 + 0.113 * n)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert len(read_table(tmp_path, "windows")) % 2 == 0
    assert capsys.readouterr().err == ""
    append_rows(tmp_path, "windows", [{"run_id": "b"}])
