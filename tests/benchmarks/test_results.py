"""The tables: no row is lost, torn, doubled or run by a spreadsheet, whatever stops a writer.

.venv/bin/python -m pytest tests/benchmarks/test_results.py
"""

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
from support import ROOT

from benchmarks.common import rows as tables
from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from benchmarks.common.rows import append_rows, format_cell, read_table
from scripts.results.settings import add_settings, settings_hash
from scripts.runner.loop import lock_result_set

APPENDER = """
import sys
from pathlib import Path
from benchmarks.common.rows import append_rows
for n in range(int(sys.argv[3])):
    append_rows(Path(sys.argv[1]), "windows", [{"run_id": sys.argv[2], "window": n, "images": 8}] * 2)
"""


def appender(results, name, num_rows):
    """A process that appends pairs of rows, one pair after the other."""
    return subprocess.Popen([sys.executable, "-c", APPENDER, results, name, str(num_rows)], cwd=ROOT)


def test_what_is_written_is_read(tmp_path):
    """Protects the round trip: numbers are numbers, text is text, None is an empty cell and never 0."""
    row = {
        "run_id": "a",
        "strategy": "ddp",
        "exit_code": None,
        "repeat": 0,
        "wall_s": 1 / 3,
        "parallel": False,
        "dirty": True,
        "reason": 'it said "no",\nthen left\r\n\tsomething',
        "images_per_s": None,
    }
    append_rows(tmp_path, "runs", [row])
    append_rows(tmp_path, "runs", [])
    append_rows(tmp_path, "runs", [{"run_id": "b"}])
    frame = read_table(tmp_path, "runs")
    assert list(frame.columns) == list(TABLES["runs"]) and list(frame["run_id"]) == ["a", "b"]
    first = frame.iloc[0]
    assert first["reason"] == 'it said "no", then left something'
    assert (first["repeat"], first["parallel"], first["dirty"]) == (0, "no", "yes")
    assert first["wall_s"] == pytest.approx(1 / 3, rel=1e-8)
    assert frame[["exit_code", "images_per_s", "val_samples"]].isna().all(axis=None)
    with open(tmp_path / "runs.csv", newline="") as file:
        cells = next(csv.DictReader(file))
    assert cells["exit_code"] == cells["images_per_s"] == cells["acc1"] == "" and cells["repeat"] == "0"


def test_an_unknown_column_raises_and_writes_nothing(tmp_path):
    """Protects against a misspelt measurement that would quietly be an empty column."""
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}])
    with pytest.raises(ValueError, match="image_per_s"):
        append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}, {"run_id": "a", "image_per_s": 3}])
    assert len(read_table(tmp_path, "windows")) == 1


@pytest.mark.parametrize("text", ["=cmd()", "+1", "@SUM(A1)", "\n-2", "'=1", "--lr 0.1"])
def test_text_that_a_spreadsheet_would_run_is_neutralised(tmp_path, text):
    """Promise 3 of SECURITY.md: a file name or a flag may start with = and the like. Numbers stay numbers."""
    append_rows(tmp_path, "runs", [{"run_id": "a", "options": text, "reason": f"{text!r} is bad", "val_loss": -1.5}])
    with open(tmp_path / "runs.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert row["options"] == "'" + text.strip()
    assert row["val_loss"] == "-1.5"
    assert read_table(tmp_path, "runs").options[0] == text.strip(), "readers get the text back"


def test_cells_are_plain_text_on_one_line():
    """Protects line-by-line reading, UTF-8, and digits: nine of them, so that equal losses are equal cells."""
    assert format_cell("a\nb") == "a b"
    assert format_cell(0.1 + 0.2) == "0.3" and format_cell(123456789.25) == "123456789" and format_cell(1e-7) == "1e-07"
    assert format_cell(os.fsdecode(b"/data/\xff")) == r"/data/\udcff"
    assert format_cell("/data/a\x1b]0;owned\x07\x9b.JPEG is damaged") == "/data/a?]0;owned??.JPEG is damaged"


@pytest.mark.parametrize("torn", ['a,2,"8', "a,2,8,1.5,5.3", "a", "a,2,\xff"])
def test_half_a_line_of_a_killed_writer_is_no_row_and_spoils_none(tmp_path, capsys, torn):
    """Protects the rows before it and the next one: a line counts once it has its end."""
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}, {"run_id": "a", "window": 1}])
    with open(tmp_path / "windows.csv", "ab") as file:
        file.write(torn.encode("latin-1"))
    assert list(read_table(tmp_path, "windows")["window"]) == [0, 1]
    assert "1 of its lines are not whole" in capsys.readouterr().err
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 3}])
    assert list(read_table(tmp_path, "windows")["window"]) == [0, 1, 3]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("torn", ["", "run_id,win"])
def test_a_writer_that_was_killed_in_the_first_line_leaves_a_new_table(tmp_path, torn):
    (tmp_path / "windows.csv").write_text(torn)
    assert read_table(tmp_path, "windows").empty
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 3}])
    assert list(read_table(tmp_path, "windows")["window"]) == [3]


@pytest.mark.parametrize("damage", ['a,"9\n', "a\n", "a,9,9,9,9,9\n", "a,9,\xff\xfe\n"])
def test_a_damaged_line_costs_no_other_row(tmp_path, capsys, damage):
    """Protects good rows after a bad one: half a quoted cell must not swallow the lines that follow."""
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}])
    with open(tmp_path / "windows.csv", "ab") as file:
        file.write(damage.encode("latin-1"))
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}])
    assert list(read_table(tmp_path, "windows")["window"]) == [0, 1]
    assert "1 of its lines are not whole" in capsys.readouterr().err


def test_a_set_of_an_older_version_is_read_and_not_continued(tmp_path):
    """Protects published sets, and new rows from cells under the names of others."""
    text = 'run_id,strategy,reason,not_ours\nold,ddp,"a, b",9\n'
    (tmp_path / "runs.csv").write_text(text)
    (row,) = read_table(tmp_path, "runs").itertuples()
    assert (row.run_id, row.reason, row.settings) == ("old", "a, b", "") and math.isnan(row.acc1)
    with pytest.raises(UserError, match=r"runs\.csv has other columns"):
        append_rows(tmp_path, "runs", [{"run_id": "new"}])
    with pytest.raises(UserError, match=r"runs\.csv has other columns"), lock_result_set(tmp_path):
        pass  # before hours of training
    assert (tmp_path / "runs.csv").read_text() == text


ASKED = {"strategy": "ddp", "data": "a  b   c", "lr": 0.1, "names": ["=1", 'say "no"', "\n\udcff"], "seed": None}


def test_settings_are_added_once_and_read_back_whole(tmp_path):
    """Protects the identity of runs: a row a hash, and JSON that no rule for cells has changed."""
    first = add_settings(tmp_path, ASKED)
    assert add_settings(tmp_path, ASKED | {"config": "another name"}) == first == settings_hash(ASKED)
    second = add_settings(tmp_path, ASKED, {"torch": "2.15.0", "device_name": "two  spaces"})
    assert second != first == add_settings(tmp_path, ASKED, {})
    rows = read_table(tmp_path, "settings")
    assert list(rows.settings) == [first, second] and set(rows.asked_hash) == {first}
    assert [json.loads(text) for text in rows.asked] == [ASKED, ASKED]
    assert rows.met[0] == "" and json.loads(rows.met[1])["device_name"] == "two  spaces"


def test_a_write_that_fails_leaves_the_rows_before_it(tmp_path, monkeypatch):
    """Protects measured rows from a full disk, and the user is told. A row that was half written is taken back."""
    append_rows(tmp_path, "windows", [{"run_id": "a", "window": 0}])
    before = (tmp_path / "windows.csv").read_bytes()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tables.os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; earlier rows are kept"):
        append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}])
    assert (tmp_path / "windows.csv").read_bytes() == before


MEASURER = """
import sys
from pathlib import Path
from benchmarks.common.rows import append_rows
from scripts.results.settings import add_settings
for n in range(40):
    append_rows(Path(sys.argv[1]), "windows", [{"run_id": sys.argv[2], "window": n}])
    if n < 20:
        add_settings(Path(sys.argv[1]), {"n": n})
"""


def test_two_programs_that_measure_at_once_lose_no_row_and_double_none(tmp_path):
    """Protects rows, of which two writers once kept 105 of 200; and the table of settings."""
    writers = [subprocess.Popen([sys.executable, "-c", MEASURER, tmp_path, name], cwd=ROOT) for name in "ab"]
    assert [writer.wait(120) for writer in writers] == [0, 0]
    rows = [(row.run_id, int(row.window)) for row in read_table(tmp_path, "windows").itertuples()]
    assert sorted(rows) == [(name, n) for name in "ab" for n in range(40)]
    assert len(set(read_table(tmp_path, "settings").settings)) == 20


def test_a_writer_that_hangs_costs_the_others_a_while_and_not_for_ever(tmp_path, monkeypatch):
    """Protects a run's limit of time: whoever waits for the lock gives up, and says which process to end."""
    append_rows(tmp_path, "windows", [{"run_id": "a"}])
    monkeypatch.setattr(tables, "hold_lock", lambda path: hold_lock(path, 0.1))
    why = r"another process has held .*/\.writing for more than 0.1 s \(fuser names it\); earlier rows are kept"
    with hold_lock(tmp_path / ".writing"), pytest.raises(UserError, match=why):
        append_rows(tmp_path, "windows", [{"run_id": "b"}])
    append_rows(tmp_path, "windows", [{"run_id": "c"}])
    assert list(read_table(tmp_path, "windows").run_id) == ["a", "c"]


def test_a_killed_writer_leaves_whole_rows(tmp_path, capsys):
    """Protects against kill -9 at any moment: the pairs of rows are there, both or neither."""
    for n in range(6):
        writer = appender(tmp_path, "a", 100_000)
        while not (tmp_path / "windows.csv").exists():
            time.sleep(0.01)
        time.sleep(0.1 + 0.013 * n)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert len(read_table(tmp_path, "windows")) % 2 == 0
    assert capsys.readouterr().err == ""
    append_rows(tmp_path, "windows", [{"run_id": "b"}])  # nobody holds the lock any more


@pytest.mark.parametrize("folder", ["/proc/self/a set", "below/a set"])
def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path, folder):
    """Protects the reader of the message; root may write anywhere but here."""
    (tmp_path / "below").write_text("a file, not a folder")
    with pytest.raises(UserError, match=r"cannot write results in .*; earlier rows are kept"):
        append_rows(tmp_path / folder, "runs", [{"run_id": "a"}])


def test_a_control_character_of_a_table_reaches_nobody(tmp_path):
    """Protects the terminal of who reads somebody else's set. Mutant: the cells as they are."""
    (tmp_path / "runs.csv").write_text("run_id,strategy,status\nx,ddp\x1b]0;owned\x07\x9b2J,ok\n", encoding="utf-8")
    assert [*read_table(tmp_path, "runs").strategy] == ["ddp?]0;owned??2J"]
