"""The run's folder."""

from benchmarks.common.clock import Window
from benchmarks.common.config import Config
from benchmarks.common.rank import Rank
from benchmarks.common.summary import Record


def test_nothing_is_written_to_the_folder_of_another_program(tmp_path, monkeypatch):
    """RUN_DIR is its variable, too."""
    kept = {"summary.json": "months of work", "progress": "90 %"}
    (folder := tmp_path / "of another" / "program").mkdir(parents=True)
    for name, content in kept.items():
        (folder / name).write_text(content)
    monkeypatch.setenv("RUN_DIR", str(folder))
    record = Record(Config(), Rank(), 1)
    record.report_progress(1)
    record.note_window(0, Window(8, 1.0, 1.0), [1000.0], 0)
    record.finish({}, {})
    assert {path.name: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == kept
