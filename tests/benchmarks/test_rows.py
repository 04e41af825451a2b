"""The tables: no row is lost, torn, doubled or run by a spreadsheet."""

import csv
import json
import math
import multiprocessing

import pytest

from benchmarks.common.columns import TABLES
from benchmarks.common.errors import UserError
from benchmarks.common.rows import append_rows, format_cell, read_table
from scripts.results.settings import add_settings, settings_hash
from scripts.runner.loop import lock_result_set


def test_what_is_written_is_read(tmp_path):
    """None is an empty cell and never 0."""
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
    with pytest.raises(ValueError, match="image_per_s"):
        append_rows(tmp_path, "windows", [{"run_id": "a", "window": 1}, {"run_id": "a", "image_per_s": 3}])
    assert read_table(tmp_path, "windows").empty


def test_texts_of_others_do_nothing_in_a_spreadsheet_or_a_terminal(tmp_path):
    """Promise 3 of SECURITY.md."""
    texts = ["=cmd()", "+1", "@SUM(A1)", "-2", "'=1"]
    append_rows(tmp_path, "runs", [{"run_id": "a", "options": text, "val_loss": -1.5} for text in texts])
    with open(tmp_path / "runs.csv", newline="") as file:
        assert [(row["options"], row["val_loss"]) for row in csv.DictReader(file)] == [("'" + t, "-1.5") for t in texts]
    assert [*read_table(tmp_path, "runs").options] == texts
    assert format_cell("a\x1b]0;owned\x07\x9b.JPEG") == "a?]0;owned??.JPEG"
    (tmp_path / "runs.csv").write_text("run_id,strategy\nx,ddp\x1b]0;owned\x07\n")
    assert [*read_table(tmp_path, "runs").strategy] == ["ddp?]0;owned?"]


@pytest.mark.parametrize("damage", ['a,"9\n', "a,9,9,9,9,9\n", "a,9,\xff\xfe\n", "a,2,8,1.5,5.3"])
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
    requested = {"strategy": "ddp", "data": "a  b   c", "names": ["=1", 'say "no"', "\n\udcff"], "seed": None}
    first = add_settings(tmp_path, requested)
    assert add_settings(tmp_path, requested | {"config": "another name"}) == first == settings_hash(requested)
    second = add_settings(tmp_path, requested, {"device_name": "two  spaces"})
    rows = read_table(tmp_path, "settings")
    assert [*rows.settings] == [first, second] and {*rows.asked_hash} == {first} != {second}
    assert [json.loads(text) for text in rows.asked] == [requested, requested]
    assert rows.met[0] == "" and json.loads(rows.met[1]) == {"device_name": "two  spaces"}


def write_rows(folder, name):
    for n in range(20):
        append_rows(folder, "windows", [{"run_id": name, "window": n}])
        add_settings(folder, {"n": n})


def test_two_writers_lose_no_row_and_double_no_settings(tmp_path):
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_rows, args=(tmp_path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    rows = read_table(tmp_path, "windows")
    assert sorted(zip(rows.run_id, rows.window, strict=True)) == [(name, n) for name in "ab" for n in range(20)]
    settings = read_table(tmp_path, "settings").settings
    assert len(settings) == len({*settings}) == 20
