"""The loop and the record of each run: order, rows, charts, signals, and what is left after a kill.

Loops and records are real; what they run is not. tests/faults has real runs.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fault_runs import processes_of, until
from support import ONE_RUN, OURS, ROOT, environment, hear_sigint, start_bench

from benchmarks.common.config import FIELDS, Config
from benchmarks.common.rows import WARM_UP, read_table
from benchmarks.common.run_folder import RunFolder
from scripts.results.settings import requested_settings
from scripts.runner import record
from scripts.runner.cause import RunEnd
from scripts.shared import source_version

pytestmark = pytest.mark.real_interpreter  # signals, and who is whose child


class RecordedRuns:
    """./bench run of a copy of the suite, on the recorder. `hold` is a file that keeps runs waiting."""

    def __init__(self, recorder, checkout: Path, folder: Path, data: Path):
        self.recorder, self.results, self.hold, self.checkout = recorder, folder / "a set", folder / "hold", checkout
        self.results.mkdir()
        (self.results / "environment.json").write_text("{}")  # collecting it takes seconds
        self.variables = recorder.variables | {"RESULTS": self.results, "DATA": data, "PASSED_ON": OURS}
        self.variables |= {"STRATEGIES": "single ddp", "WAIT_WHILE": self.hold}

    def start(self, **variables) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": hear_sigint}
        return start_bench(self.checkout, **self.variables | pipes | variables)

    def start_and_hold(self, **variables) -> tuple[subprocess.Popen, Path]:
        """A suite whose first run waits, and the folder of that run."""
        self.hold.touch()
        process = self.start(**{"STRATEGIES": "single", "REPEATS": 1} | variables)
        until(lambda: self.modules() or process.poll() is not None, "a run", 60)
        return process, Path(self.recorder.calls()[-1]["env"]["RUN_DIR"])

    def run(self, **variables) -> subprocess.CompletedProcess:
        process = self.start(**variables)
        out, err = process.communicate(timeout=120)
        print(out, err)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def rows(self) -> list[tuple]:
        """Round, strategy and status of each row but that of the warm-up."""
        frame = read_table(self.results, "runs")
        frame = frame[frame["repeat"] > 0]
        return [*zip(frame["repeat"], frame["strategy"], frame["status"], strict=True)]

    def modules(self) -> list[str]:
        """What was started so far, without warm-ups."""
        return [next((word for word in call["words"] if "." in word), "") for call in self.recorder.calls()]


@pytest.fixture
def suite(recorder, checkout, tmp_path, tiny_data):
    return RecordedRuns(recorder, checkout, tmp_path, tiny_data)


# --- a suite ----------------------------------------------------------------------------------------------------------


@pytest.mark.launches
def test_rounds_are_interleaved_and_go_on_after_a_failure_and_can_be_continued(suite):
    """Charts are drawn after each round and never beside a run; the first lines say what will be done, and when it will
    end."""
    done = suite.run(REPEATS=2, FAILS="single")
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and "planted failure" in done.stderr  # the last lines of the log
    assert suite.rows() == [(1, "single", "failed"), (1, "ddp", "ok"), (2, "ddp", "ok"), (2, "single", "failed")]
    assert lines[:2] == [f"{suite.results}: 4 runs in 2 rounds, after a warm-up that does not count", "  single; ddp"]
    numbers = [line.split()[0] for line in lines if " #" in line]
    assert numbers == [WARM_UP, "1/4", "2/4", "3/4", "4/4"]
    single, ddp, plot = "benchmarks.single", "torch.distributed.run", "scripts.charts.plot"
    assert suite.modules() == [single, ddp, plot, ddp, single, plot]
    assert len([line for line in lines if line.startswith("round 1 is done; the suite ends at about ")]) == 1
    assert not (suite.checkout / "results/latest").exists()  # a set outside results/ does not take its place
    assert suite.run(REPEATS=2, RETRY="failed").returncode == 0
    assert suite.rows()[4:] == [(1, "single", "ok"), (2, "single", "ok")]
    assert "every planned run has a row already" in suite.run(REPEATS=2).stdout


@pytest.mark.launches
def test_another_node_leaves_the_row_to_the_first(suite):
    """Of torchrun over machines: only the first node's rank 0 has metrics, and the others did not fail."""
    far = {"NNODES": 2, "NODE_RANK": 1, "RDZV_ENDPOINT": "node0:29400", "LEAVES": "nothing"}
    done = suite.run(REPEATS=1, STRATEGIES="ddp", **far)
    assert done.returncode == 0 and suite.rows() == [] and "the first node has its row" in done.stdout
    assert suite.run(REPEATS=1, STRATEGIES="ddp", LEAVES="nothing").returncode == 1
    assert suite.rows() == [(1, "ddp", "failed")]


@pytest.mark.launches
def test_a_signal_ends_the_suite_after_a_true_row(suite):
    """The run in progress is interrupted, no other starts, the charts are drawn. A second suite is refused until
    then."""
    process, folder = suite.start_and_hold(REPEATS=2)
    second = suite.run(REPEATS=2)
    assert second.returncode == 2 and "is in use by another suite" in second.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143 and processes_of(folder) == []
    assert suite.rows() == [(1, "single", "interrupted")] and suite.modules()[-1] == "scripts.charts.plot"


# --- kills ------------------------------------------------------------------------------------------------------------


@pytest.mark.launches
def test_a_killed_suite_ends_its_run_and_keeps_its_set_until_then(suite):
    first, folder = suite.start_and_hold()
    (record,) = psutil.Process(first.pid).children()
    record.suspend()  # it cannot end
    first.kill()
    first.wait(60)
    second = suite.run()
    assert second.returncode == 2 and "or by the last run of a killed one" in second.stderr
    record.resume()
    psutil.wait_procs([record], timeout=30)
    row = read_table(suite.results, "runs").iloc[-1]
    assert (row.run_id, row.status) == (folder.name, "interrupted") and processes_of(folder) == []


@pytest.mark.launches
def test_a_run_whose_suite_and_record_were_killed_is_ended_and_run_again(suite):
    """Also where a process heeds no SIGTERM."""
    first, folder = suite.start_and_hold(start_new_session=True)
    child = next(each for each in processes_of(folder) if each.environ().get("RUN_DIR"))
    child.suspend()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    until(lambda: not processes_of(folder), "no process of the run", 15)
    assert suite.rows() == []
    suite.hold.unlink()
    done = suite.run(STRATEGIES="single", REPEATS=1)
    assert done.returncode == 0 and suite.rows() == [(1, "single", "ok")], done.stderr


# --- the record of one run --------------------------------------------------------------------------------------------


SUMMARY = json.dumps({"row": {"images_per_s": 1.0}, "met": {}})


def record_command(results: Path, command: list[str]) -> list:
    """What records the command as a run of a new folder."""
    folder = RunFolder.create(results, "single", 1)
    requested = requested_settings(Config(), "single", 1, 1, 1, "")
    folder.write_plan(Config(), {name: value for name, value in requested.items() if name not in FIELDS} | ONE_RUN)
    return [sys.executable, "-m", "scripts.runner.record", "--run", folder.plan, "--", *command]


def test_what_a_failed_run_printed_does_not_steer_the_terminal(tmp_path):
    words = record_command(tmp_path, ["bash", "-c", r"printf 'a \033]0;title\007\033[31m name\n'; exit 1"])
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True)
    assert b"| a ?]0;title??[31m name" in done.stderr and b"\033" not in done.stderr + done.stdout


def test_the_commit_is_that_of_the_runs_start(tmp_path, monkeypatch):
    """One that is made while it runs is not what ran."""
    commits = iter(["before", "after"])
    monkeypatch.setattr(source_version, "commit", lambda: next(commits))
    monkeypatch.setattr(record, "Sampler", lambda path: SimpleNamespace(stop=lambda: []))
    monkeypatch.setattr(record, "run_command", lambda *_: RunEnd(1, 2.0, 0.0))
    folder = RunFolder(Path(record_command(tmp_path, [])[4]).parent)
    folder.write_summary(json.loads(SUMMARY))
    folder.log.touch()
    assert record.main(folder, []) == 1
    (row,) = read_table(tmp_path, "runs").itertuples()
    assert (row.status, row.commit, folder.resolved()["commit"]) == ("failed", "before", "before")
