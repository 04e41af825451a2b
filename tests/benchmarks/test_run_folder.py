"""The run's folder: what one process writes another reads, and what is spoilt is said."""

from benchmarks.common.clock import Window
from benchmarks.common.config import FIELDS, Config
from benchmarks.common.rank import Rank
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.summary import Record
from scripts.results.settings import requested_settings

REQUESTED = requested_settings(Config(), "ddp", 2, 1, 1, "")
OWN = {name: value for name, value in REQUESTED.items() if name not in FIELDS}


def test_the_requested_half_stays_when_the_resolved_half_is_added(tmp_path):
    """It is what resuming asks."""
    folder = RunFolder.create(tmp_path, "ddp", 1)
    folder.write_plan(Config(), OWN | {"round": 3, "flags": "--lr 0.2"})
    folder.add_resolved({"torch": "2.15"})
    assert folder.resolved() == {}  # the run has left nothing to add to
    folder.write_summary({"row": {}, "met": {"device": "cpu"}, "wall": {}})
    folder.add_resolved({"torch": "2.15"})
    assert folder.requested() == REQUESTED and folder.resolved() == {"device": "cpu", "torch": "2.15"}
    assert folder.read_plan()["round"] == 3


def test_nothing_is_written_to_the_folder_of_another_program(tmp_path, monkeypatch):
    """RUN_DIR is the variable of other programs, too."""
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
