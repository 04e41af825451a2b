"""Kills at random moments: a short one for real, and what its judge has to find.

.venv/bin/python -m pytest tests/faults/test_kill_fuzz.py
"""

import random

import pytest
from faults.kill_fuzz import Kill, Set, play

from benchmarks.common.store.results import append_rows

pytestmark = pytest.mark.real_interpreter  # signals to every process of a run

ROW = {"run_id": "ddp-1-1", "strategy": "ddp", "status": "failed", "repeat": 1}


@pytest.mark.slow
def test_a_kill_leaves_one_row_and_no_process(tmp_path):
    """Protects `every attempt ends in one row`: three processes of suites, killed at moments that nobody chose."""
    kills = play(3, ["suite"], tmp_path, random.Random(5))
    assert len(kills) == 3 and {kill.number: kill.faults for kill in kills if kill.faults} == {}


@pytest.fixture
def killed(tmp_path) -> Set:
    """A set whose one run was killed, and has its row."""
    made = Set("suite", tmp_path / "base", {}, random.Random(0))
    (made.results / "logs" / ROW["run_id"]).mkdir(parents=True)
    append_rows(made.results, "runs", [ROW])
    made.kills.append(Kill(1, "suite", "rank", "SIGKILL", 1.0, ROW["run_id"]))
    return made


def test_the_judge_says_nothing_of_a_set_that_is_right(killed):
    assert killed.judge(last=True) == [] and killed.kills[0].faults == []


def test_the_judge_sees_what_is_wrong(killed):
    """Protects the kill fuzz from finding nothing because it looks nowhere."""
    (killed.results / "logs" / "single-1-2").mkdir()
    (killed.temporary / "torchelastic_x").mkdir()
    with open(killed.results / "windows.csv", "w") as file:
        file.write("run_id,window,images,seconds,images_per_s\nddp-1-1,0,4")
    table = killed.results / "runs.csv"
    table.write_text(table.read_text().replace(",failed,", ",ok,"))
    reported = "; ".join(killed.judge(last=True))
    for fault in ("single-1-2 has 0 rows", "left in TMPDIR: torchelastic_x", "windows.csv: the last line is cut off"):
        assert fault in reported
    assert killed.kills[0].faults == ["its row says ok"] and "is ok and has 0 windows" in reported
    table.write_text(table.read_text() + table.read_text().splitlines()[1] + "\n")
    assert "ddp-1-1 has 2 rows" in "; ".join(killed.judge(last=False))
