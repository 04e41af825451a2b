"""Kills at random moments: a short one for real, and what its judge has to find.

.venv/bin/python -m pytest tests/faults/test_kill_fuzz.py
"""

import contextlib
import os
import random
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from fault_runs import processes_of
from faults.kill_fuzz import Kill, Set, play, until
from support import ROOT, environment

from benchmarks.common.rows import append_rows

pytestmark = pytest.mark.real_interpreter  # signals to every process of a run

ROW = {"run_id": "ddp-1-1", "strategy": "ddp", "status": "failed", "repeat": 1}


@pytest.mark.slow
def test_a_kill_leaves_one_row_and_no_process(tmp_path):
    """Protects `every attempt ends in one row`: three processes of suites, killed at moments that nobody chose."""
    kills: list[Kill] = []
    play(3, ["suite"], tmp_path, random.Random(5), kills)
    assert len(kills) == 3 and {kill.number: kill.faults for kill in kills if kill.faults} == {}


@pytest.mark.medium
def test_a_signal_leaves_no_suite_behind(tmp_path):
    """Protects Ctrl-C: each suite has a session of its own, and the command once ended without the one that it had
    started. Mutant: the command gets no time to end it."""
    command = [ROOT / "bench", "kill-fuzz", "--kills", "1", "--seed", "1"]
    env = environment(SETUP="no", TMPDIR=tmp_path)
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        assert until(lambda: suites_in(tmp_path), 120)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 128 + signal.SIGINT and not processes_of(tmp_path)
    finally:
        process.kill()
        for left in processes_of(tmp_path):
            left.kill()


def suites_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in processes_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the two looks
            words = process.cmdline()
            found += [process] if str(ROOT / "bench") in words and {"run", "study"} & {*words} else []
    return found


@pytest.mark.parametrize(("code", "asked", "rounds"), [(-1, False, 1), (1, False, 2), (-1, True, 2)])
def test_the_last_suite_has_a_round_of_its_own(code, asked, rounds, killed, tiny_data):
    """Protects the judge from a run of the last round that failed before: it is not run again. Mutant: never asked."""
    killed.repeats, killed.process = 1, subprocess.Popen(["bash", "-c", f"exit {code}" if code > 0 else "kill $$"])
    killed.process.wait()
    killed.start(tiny_data, asked)
    try:
        started = psutil.Process(killed.process.pid)  # its words come a moment after exec
        assert until(lambda: f"--repeats {rounds} " in " ".join(started.cmdline()), 10)
    finally:
        os.killpg(killed.process.pid, signal.SIGKILL)
        killed.process.wait()


@pytest.fixture
def killed(tmp_path) -> Set:
    """A set whose one run was killed, and has its row."""
    made = Set("suite", tmp_path / "base", random.Random(0))
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
    for fault in ("single-1-2 is lost", "left in TMPDIR: torchelastic_x", "windows.csv: the last line is cut off"):
        assert fault in reported
    assert killed.kills[0].faults == ["its row says ok"] and "is ok and has 0 windows" in reported
    table.write_text(table.read_text() + table.read_text().splitlines()[1] + "\n")
    assert "ddp-1-1 has 2 rows" in "; ".join(killed.judge(last=False))
