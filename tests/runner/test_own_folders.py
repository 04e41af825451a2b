"""Folders as people have them: logs on another disk, results below a folder of a project.

.venv/bin/python -m pytest tests/runner/test_own_folders.py
"""

import os

import pytest
from support import SYNTHETIC_YAML, run_strategy


@pytest.mark.parametrize(
    "kind",
    [
        "logs is a link",
        pytest.param("the folder above is another user's", marks=pytest.mark.skipif(os.geteuid() != 0, reason="chown")),
    ],
)
def test_a_run_keeps_its_row_and_its_log(tmp_path, kind):
    """Protects people whose logs are a link to another disk, and whose results lie in a folder of their project."""
    results = tmp_path / "a project/a set"
    results.mkdir(parents=True)
    if kind == "logs is a link":
        (tmp_path / "another disk").mkdir()
        (results / "logs").symlink_to(tmp_path / "another disk")
    else:
        results.parent.chmod(0o775)
        os.chown(results.parent, 12345, 12345)
    (tmp_path / "a.yaml").write_text(SYNTHETIC_YAML + "steps: 3\nwarmup_steps: 0\nwindows: 1\nwindow_steps: 2\n")
    row = run_strategy("ddp", results, CONFIG=tmp_path / "a.yaml", NPROC=2)
    assert (row["status"], row["log_path"]) == ("ok", f"logs/{row['run_id']}/run.log"), row["reason"]
    assert (results / row["log_path"]).exists()
    assert not [*results.glob("logs/*/rendezvous")]
