"""The run's folder: what one process writes another reads, and what is spoilt is said.

.venv/bin/python -m pytest tests/benchmarks/test_run_folder.py
"""

import dataclasses
import json
import os
import types
import typing

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.common.architectures import why_refused
from benchmarks.common.clock import Window
from benchmarks.common.config import FIELD_TYPES, LEAST, Config, load_config
from benchmarks.common.errors import UserError
from benchmarks.common.rank import Rank
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.summary import Record
from scripts.results.settings import requested_settings

ASKED = requested_settings(Config(), "ddp", 2, 1, 1, "")
OWN = {name: value for name, value in ASKED.items() if name not in FIELD_TYPES}
TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


def values_of(name: str):
    """Values that the configuration takes for a field."""
    return of_kind(FIELD_TYPES[name], LEAST.get(name, 0))


def of_kind(kind, least: int):
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return st.one_of(*(of_kind(each, least) for each in typing.get_args(kind)))
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    plain = {
        bool: st.booleans(),
        int: st.integers(least, 10**9),
        float: st.floats(least, 1e12),
        str: TEXT,
    }
    return plain[kind]


@settings(deadline=None)
@given(st.fixed_dictionaries({}, optional={name: values_of(name) for name in FIELD_TYPES if name != "config"}))
@pytest.mark.medium
def test_a_script_reads_the_configuration_that_the_plan_wrote(tmp_path_factory, values):
    """Protects the way in: whatever was resolved at the plan is what the script trains, to the last bit."""
    if values.get("batch_per_device"):
        values["global_batch"] = 0  # one of the two, as load_config has them
    assume(values.get("global_batch", 1) or values.get("batch_per_device"))
    folder = RunFolder.create(tmp_path_factory.mktemp("a set"), "ddp", 1)
    config = Config(**values, config="my own.yaml")
    assume(not why_refused(config.arch, config.norm, config.image_size))
    folder.write_plan(config, OWN)
    read = load_config(["--config", str(folder.plan)])
    assert dataclasses.replace(read, config="my own.yaml") == config
    assert folder.requested() == requested_settings(config, "ddp", 2, 1, 1, "")


def test_the_requested_half_stays_when_the_resolved_half_is_added(tmp_path):
    """Protects the first half: it is what resuming asks."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(Config(), OWN | {"round": 3, "flags": "--lr 0.2"})
    folder.add_resolved({"torch": "2.15"})
    assert folder.resolved() == {}  # the run has left nothing to add to
    folder.write_summary({"row": {}, "met": {"device": "cpu"}, "wall": {}})
    folder.add_resolved({"torch": "2.15"})
    assert folder.requested() == ASKED and folder.resolved() == {"device": "cpu", "torch": "2.15"}
    assert folder.read_plan()["round"] == 3


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "is missing or damaged"),
        ("{", "is missing or damaged"),
        ("[]", "is missing or damaged"),
    ],
)
def test_a_plan_that_cannot_be_read_is_a_sentence(tmp_path, text, words):
    """Protects the reader from a traceback, and from half of a run that a newer suite wrote."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    if text is not None:
        folder.plan.write_text(text)
    with pytest.raises(UserError, match=words):
        folder.requested()


def test_nothing_is_written_to_the_folder_of_another_program(tmp_path, monkeypatch):
    """Protects files of the user: RUN_DIR is the variable of other programs, too, and ranks replaced the summary.json
    and the progress in its folder."""
    kept = {"summary.json": "months of work", "progress": "90 %"}
    (folder := tmp_path / "of another" / "program").mkdir(parents=True)
    for name, content in kept.items():
        (folder / name).write_text(content)
    monkeypatch.setenv("RUN_DIR", str(folder))
    record = Record(Config(), Rank(), 1)
    record.report_progress(1, 0.1)
    record.note_window(0, Window(8, 1.0, 1.0), [1000.0], 0)
    record.finish({}, {})
    assert {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == kept


def test_a_planned_folder_is_the_current_one(tmp_path, monkeypatch):
    monkeypatch.delenv("RUN_DIR", raising=False)
    assert RunFolder.current() is None
    (tmp_path / "run.yaml").write_text("")
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    assert RunFolder.current().path == tmp_path


def test_runs_of_one_second_have_folders_of_their_own(tmp_path):
    assert len({RunFolder.create(tmp_path, "ddp", 1).run_id for _ in range(20)}) == 20


def test_notes_come_in_the_order_of_their_moments(tmp_path):
    """Protects the first cause."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    for pid, at in ((7, 2.0), (8, 1.0)):
        (folder.path / f"cause-{pid}.json").write_text(json.dumps({"at": at, "rank": pid}))
    (folder.path / ".cause-9.json.0123456789abcdef").write_text("{")  # of a writer that was killed
    assert [cause["rank"] for cause in folder.causes()] == [8, 7]


def test_progress_is_written_over_in_place(tmp_path, monkeypatch):
    """Protects timed windows, between which it is written: no new file, and nothing waits for the disk."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    assert folder.progress() is None and folder.summary() is None
    folder.write_progress(99, 100, 12.5)
    before = (folder.path / "progress").stat()
    for name in ("fsync", "rename", "replace", "open"):
        monkeypatch.setattr(os, name, None)
    folder.write_progress(3, 8)
    assert folder.progress() == (3, 8) and folder.step_s() == 0
    after = (folder.path / "progress").stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    (folder.path / "progress").write_text("3")
    assert folder.progress() is None
