"""What is on the disk when a call that writes rows has returned, and what a power cut leaves before that.

.venv/bin/python -m pytest tests/benchmarks/test_power_cut.py
"""

import os
from pathlib import Path

import pytest
from power_cut import content, recorded, states

from benchmarks.common.store.results import append_rows, read_table
from benchmarks.common.system import files
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import make_folder, replace_atomically, sync_folder

OLD = [{"run_id": "old", "window": n, "images": 8, "seconds": 0.5} for n in range(2)]
NEW = [{"run_id": "new", "window": n, "images": 8, "seconds": 0.25} for n in range(2)]


def rows_in(state: dict[str, bytes], folder: Path) -> list[str]:
    folder.mkdir()
    for name, data in state.items():
        (folder / name).write_bytes(data)
    return [
        f"{row.run_id} {row.window} {row.images} {row.seconds}" for row in read_table(folder, "windows").itertuples()
    ]


def damage(before, calls, results, tmp_path) -> list[str]:
    """Which states a power cut may leave that hold neither the rows before nor those after, or have lost the rows
    that a call had written when it returned. results: the folder after the call."""
    old, new = rows_in(before, tmp_path / "old"), rows_in(content(results), tmp_path / "new")
    assert len(new) == len(old) + 2
    found = []
    for place, (num_done, state) in enumerate(states(before, calls)):
        try:
            rows = rows_in(state, tmp_path / f"state {place}")
        except UserError as error:  # such as half a line of column names
            rows = [str(error)]
        if rows != new and (rows != old or num_done == len(calls)):
            found.append(f"after {num_done} calls, {calls[num_done - 1][0]} the last: {rows}")
    return found


@pytest.fixture(params=["the first rows", "more rows"])
def results(request, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    if request.param == "more rows":
        append_rows(folder, "windows", OLD)
    return folder


def test_a_power_cut_leaves_the_old_or_the_new_rows(results, tmp_path, monkeypatch):
    """Protects measured rows, after any prefix of the calls; and a row whose writer has gone on is there."""
    before = content(results)
    calls = recorded(monkeypatch, results, lambda: append_rows(results, "windows", NEW))
    assert damage(before, calls, results, tmp_path) == []


def without_sync(calls):
    return [call for call in calls if call[0] != "sync"]


def without_sync_of_the_folder(calls):
    return [call for call in calls if call[0] != "sync folder"]


@pytest.mark.parametrize("less", [without_sync, without_sync_of_the_folder])
def test_the_replay_finds_what_was_not_synced(results, tmp_path, monkeypatch, less):
    """Protects the test above: without one of the two syncs it must find a state that has lost rows."""
    before = content(results)
    calls = recorded(monkeypatch, results, lambda: append_rows(results, "windows", NEW))
    assert damage(before, less(calls), results, tmp_path)


def test_the_replay_finds_what_was_written_in_place(tmp_path, monkeypatch):
    """Protects the tests above: a table written in place, with both syncs, may lose the rows that were there."""
    results = tmp_path / "results"
    results.mkdir()
    append_rows(results, "windows", OLD)
    before, table = content(results), results / "windows.csv"

    def in_place() -> None:
        more = table.read_bytes() + b"new,0,8,0.25,\nnew,1,8,0.25,\n"
        with files.os.fdopen(files.os.open(table, os.O_WRONLY | os.O_TRUNC), "wb") as file:
            file.write(more)
            file.flush()
            files.os.fsync(file.fileno())
        files.sync_folder(results)

    assert damage(before, recorded(monkeypatch, results, in_place), results, tmp_path)
    with pytest.raises(AssertionError, match="written past"):
        recorded(monkeypatch, results, lambda: table.write_text("run_id\n"))


def test_a_power_cut_leaves_the_old_or_the_new_file(tmp_path, monkeypatch):
    """Protects what is written in pieces, such as a checkpoint."""
    path = tmp_path / "last.pt"
    path.write_bytes(b"old")
    pieces = [bytes([n]) * 10_000 for n in range(3)]
    before = content(tmp_path)
    calls = recorded(monkeypatch, tmp_path, lambda: replace_atomically(path, lambda file: [*map(file.write, pieces)]))
    assert sum(call[0] == "write" for call in calls) > 1
    for num_done, state in states(before, calls):
        assert state["last.pt"] in (b"old", b"".join(pieces)), calls[num_done - 1]
        assert num_done < len(calls) or state == {"last.pt": b"".join(pieces)}


def test_a_new_folder_is_named_on_the_disk(tmp_path, monkeypatch):
    """Protects the rows of a new set: the folder above each new one is synced."""
    synced = []
    monkeypatch.setattr(files, "sync_folder", lambda folder: synced.append(folder) or sync_folder(folder))
    make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"] and (tmp_path / "a" / "b").is_dir()
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_file_system_that_syncs_no_folders_is_no_error():
    sync_folder(Path("/proc/self"))
