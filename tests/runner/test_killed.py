"""A finished run keeps its row whoever reads its output; what is killed leaves one row and no process.

.venv/bin/python -m pytest tests/runner/test_killed.py
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fault_runs import processes_of, until
from support import ONE_RUN, OURS, ROOT, environment, hear_sigint, start_bench

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.results.settings import requested_settings
from scripts.runner import loop
from scripts.shared.forward_signals import forward_signals

pytestmark = pytest.mark.real_interpreter  # signals, and who is whose child

WALL = {"boot_id": "x", "started_at": 0.0, "ended_at": 0.0, "parts": {}}
SUMMARY = json.dumps({"row": {"images_per_s": 1.0}, "met": {}, "wall": WALL})
FINISHES = ["bash", "-c", 'echo "$0" >"$RUN_DIR/summary.json"', SUMMARY]
WAITS = [
    "bash",
    "-c",
    'touch "$RUN_DIR/began"; while [ ! -e "$RUN_DIR/go" ]; do sleep 0.05; done; ' + FINISHES[2],
    SUMMARY,
]


def folder_of(results: Path) -> RunFolder:
    folder = RunFolder.create(results, "single", 1)
    requested = requested_settings(Config(), "single", 1, 1, 1, "")
    folder.write_plan(Config(), {name: value for name, value in requested.items() if name not in FIELDS} | ONE_RUN)
    return folder


def record_command(folder: RunFolder, command: list[str]) -> list:
    return [sys.executable, "-m", "scripts.runner.record", "--run", folder.plan, "--", *command]


def row_of(results: Path) -> dict:
    (row,) = read_table(results, "runs").to_dict("records")
    return row


# --- nobody reads ---------------------------------------------------------------------------------------------------


def test_a_finished_run_has_its_row_whoever_reads_its_line(tmp_path):
    """Protects hours of training from `| head -1`, a closed stdout or stderr, and a full disk under the output."""
    ends = {"a reader that is gone": "| true", "stdout": ">&-", "both": ">&- 2>&-", "a full disk": ">/dev/full 2>&1"}
    started = {}
    for name, end in ends.items():
        folder = folder_of(tmp_path / name)
        command = ["bash", "-c", f'"$@" {end}; exit "${{PIPESTATUS[0]}}"', "-", *record_command(folder, FINISHES)]
        started[name] = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    for name, process in started.items():
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), name
        assert row_of(tmp_path / name)["status"] == "ok", name


def test_what_a_failed_run_printed_does_not_steer_the_terminal(tmp_path):
    """Protects who reads why a run failed from what it printed: names of somebody else's files, or of a library.
    Mutants: the last lines of the log, or the reason, as they stand."""
    fails = ["bash", "-c", r"printf 'a \033]0;title\007\033[31m name\n'; exit 1"]
    words = record_command(folder_of(tmp_path), fails)
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True)
    assert b"| a ?]0;title??[31m name" in done.stderr and b"\033" not in done.stderr + done.stdout


def test_quit_leaves_a_row(tmp_path):
    """Protects the row from ^\\, which terminals send as SIGQUIT."""
    folder = folder_of(tmp_path)
    process = subprocess.Popen(record_command(folder, WAITS), cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
    until((folder.path / "began").exists, "the run begins", 60)
    process.send_signal(signal.SIGQUIT)
    process.communicate(timeout=60)
    row = row_of(tmp_path)
    assert (process.returncode, row["status"], row["reason"]) == (131, "interrupted", "SIGQUIT to the launcher")
    assert processes_of(tmp_path) == []


def test_ctrl_c_prints_no_traceback_of_a_program_that_starts(tmp_path):
    """Protects the terminal: Ctrl-C reaches every process of the suite, and Python programs that are still importing
    printed tracebacks. Mutant: SignalForwarder.run without the mask."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    with forward_signals() as child_runner, open(tmp_path / "output", "w") as output:
        assert child_runner.run([sys.executable, "-c", program], stdout=output, stderr=output) == 0
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert (tmp_path / "output").read_text() == ""


# --- the loop and its records -----------------------------------------------------------------------------------


@pytest.fixture
def suite(recorder, checkout, tmp_path, tiny_data):
    """./bench run on the recorder; `hold` is a file that keeps a run waiting."""
    results = tmp_path / "a set"
    results.mkdir()
    (results / "environment.json").write_text("{}")  # collecting it takes seconds
    ours = {"RESULTS": results, "DATA": tiny_data, "STRATEGIES": "single", "REPEATS": 1, "PASSED_ON": OURS}
    (hold := tmp_path / "hold").touch()

    def start(results: Path = results, **popen) -> subprocess.Popen:
        variables = recorder.variables | ours | {"WAIT_WHILE": hold, "RESULTS": results}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | popen
        return start_bench(checkout, **variables, preexec_fn=hear_sigint, **streams)

    start.results, start.hold, start.recorder = results, hold, recorder
    return start


def until_runs(suite) -> Path:
    """Wait until the run waits for `hold`; returns its folder."""
    calls = until(
        lambda: [call for call in suite.recorder.calls() if "benchmarks.single" in call["words"]], "a run", 60
    )
    return Path(calls[-1]["env"]["RUN_DIR"])


def statuses(results: Path) -> list[str]:
    frame = read_table(results, "runs")
    return [*frame[frame["repeat"] > 0].status]


@pytest.mark.medium
def test_a_killed_suite_ends_its_run_and_keeps_its_set_until_then(suite):
    """Protects the machine from two suites at once: the run of a suite that was killed (by the kernel, where memory is
    short) ends with a true row; before it has, no other suite gets the set."""
    first = suite()
    folder = until_runs(suite)
    (record,) = psutil.Process(first.pid).children()
    record.suspend()  # it cannot end
    first.kill()
    first.wait(60)
    second = suite()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 2 and "or by the last run of a killed one" in err, out
    record.resume()
    psutil.wait_procs([record], timeout=30)
    row = read_table(suite.results, "runs").iloc[-1]
    assert (row.run_id, row.status) == (folder.name, "interrupted")
    assert processes_of(folder) == []


@pytest.mark.medium
def test_a_run_whose_suite_and_record_were_killed_is_run_again_by_the_next_suite(suite):
    """Protects a set from a gap where the kernel has killed both; no process is left."""
    first = suite(start_new_session=True)
    folder = until_runs(suite)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: not processes_of(folder), "no process of the run", 10)
    assert statuses(suite.results) == []
    suite.hold.unlink()
    second = suite()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, out + err
    assert statuses(suite.results) == ["ok"]


def test_a_run_that_is_alive_is_not_taken_for_a_lost_one(suite):
    """Protects a launcher that a person has started by hand, into a set in which a suite begins."""
    folder = folder_of(suite.results)
    by_hand = subprocess.Popen(record_command(folder, WAITS), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    until((folder.path / "began").exists, "the run begins", 60)
    loop.end_lost_runs(suite.results)
    assert read_table(suite.results, "runs").empty
    (folder.path / "go").touch()
    assert by_hand.wait(60) == 0
    assert row_of(suite.results)["status"] == "ok"
