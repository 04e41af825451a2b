"""A finished run keeps its row whoever reads its output; what is killed leaves one row and no process.

.venv/bin/python -m pytest tests/runner/test_killed.py
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest
from fault_runs import processes_of, until
from support import ROOT, environment, hear_sigint

from benchmarks.common.config.config import Config
from benchmarks.common.config.settings import requested_settings
from benchmarks.common.store.results import read_table
from benchmarks.common.store.run_folder import RunFolder
from benchmarks.common.system.forward_signals import forward_signals
from scripts.runner import lost_runs, supervisor

pytestmark = pytest.mark.real_interpreter  # signals, and who is whose child

WALL = {"boot_id": "x", "started_at": 0.0, "ended_at": 0.0, "parts": {}}
OURS = "scripts.runner.supervisor scripts.runner.run_plan scripts.runner.bench"
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
    folder.write_requested(Config(), requested_settings(Config(), "single", 1, 1, 1, ""))
    return folder


def supervisor_command(folder: RunFolder, command: list[str]) -> list:
    """The command line of an supervisor that is started by hand."""
    own = ["--strategy", "single", "--results", folder.results, "--run-id", folder.run_id]
    return [sys.executable, "-m", "scripts.runner.supervisor", *own, "--", *command]


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
        command = ["bash", "-c", f'"$@" {end}; exit "${{PIPESTATUS[0]}}"', "-", *supervisor_command(folder, FINISHES)]
        started[name] = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    for name, process in started.items():
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), name
        assert row_of(tmp_path / name)["status"] == "ok", name


@pytest.mark.medium
def test_a_terminal_that_closes_ends_a_run_with_its_row_and_under_nohup_does_not(tmp_path):
    """Protects a run in an ssh session that breaks off: a real terminal, whose bar cannot be drawn any more."""
    started = {}
    for name in ("hup", "nohup"):
        folder, (master, slave) = folder_of(tmp_path / name), pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))  # no columns, no bar
        words = ["setsid", "--ctty", "bash", "-c", 'trap "" HUP; exec "$@"' if name == "nohup" else 'exec "$@"', "-"]
        streams = {"stdin": slave, "stdout": slave, "stderr": slave}
        command = [*words, *supervisor_command(folder, WAITS)]
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), preexec_fn=hear_sigint, **streams)
        os.close(slave)
        started[name] = (process, folder, master)
    for _, folder, master in started.values():
        until((folder.path / "began").exists, "the run begins", 60)
        until(lambda master=master: select.select([master], [], [], 0)[0], "the bar is drawn", 60)
        os.close(master)
    time.sleep(0.5)  # some bars that nobody sees
    (started["nohup"][1].path / "go").touch()
    assert [process.wait(60) for process, *_ in started.values()] == [129, 0]
    assert row_of(tmp_path / "nohup")["status"] == "ok"
    row = row_of(tmp_path / "hup")
    assert (row["status"], row["reason"]) == ("interrupted", "SIGHUP to the launcher")
    assert processes_of(tmp_path) == []


def test_a_full_disk_under_the_rows_still_says_what_became_of_the_run(tmp_path):
    """Protects the number that a run was for: the rows come first, and where they cannot be written the line is all."""
    folder = folder_of(tmp_path)
    (tmp_path / "runs.csv").mkdir()  # stands for the full disk: this cannot be read, or replaced
    done = subprocess.run(
        supervisor_command(folder, FINISHES), cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode and re.search(r"single +#1  ok", done.stdout) and "1.0 images/s" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_finished_run_whose_row_could_not_be_written_gets_it_from_the_next_suite(tmp_path):
    """Protects what was measured from a disk that was full, or a table that was spoilt, when the run ended: it was
    written down as failed, and not run again."""
    folder = folder_of(tmp_path)
    (tmp_path / "runs.csv").write_text("run_id;strategy\n")  # as a spreadsheet saves it
    finishes = [*FINISHES[:3], SUMMARY.replace('"met": {}', '"met": {"torch": "2"}')]
    done = subprocess.run(
        supervisor_command(folder, finishes), cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    assert done.returncode and "move it away" in done.stderr
    (tmp_path / "runs.csv").unlink()
    lost_runs.record_lost_runs(tmp_path)
    row = row_of(tmp_path)
    assert (row["run_id"], row["status"], row["images_per_s"]) == (folder.run_id, "ok", 1.0)
    (settings,) = read_table(tmp_path, "settings").to_dict("records")
    assert (settings["settings"], bool(settings["met"])) == (row["settings"], True)


def test_what_a_failed_run_printed_does_not_steer_the_terminal(tmp_path):
    """Protects who reads why a run failed from what it printed: names of somebody else's files, or of a library.
    Mutants: the last lines of the log, or the reason, as they stand."""
    fails = ["bash", "-c", r"printf 'a \033]0;title\007\033[31m name\n'; exit 1"]
    words = supervisor_command(folder_of(tmp_path), fails)
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True)
    assert b"| a ?]0;title??[31m name" in done.stderr and b"\033" not in done.stderr + done.stdout


def test_the_commit_of_a_run_is_that_of_its_start(tmp_path, monkeypatch):
    """Protects the source of a run during which somebody commits. Mutant: asked for again at the end."""
    folder, commits = folder_of(tmp_path), iter(["before"])
    monkeypatch.setattr(supervisor.source_version, "commit", lambda: next(commits, "after"))
    monkeypatch.setattr(supervisor.source_version, "local_changes", lambda: "")
    (folder.path / "summary.json").write_text(SUMMARY.replace('"met": {}', '"met": {"torch": "2"}'))
    descriptor = os.open(folder.unrecorded, os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(supervisor, "run_command", lambda *words: words[3].start() or supervisor.RunEnd(0, 1.0, 0.0))
    options = supervisor.SupervisorOptions("single", tmp_path, folder.run_id)
    assert supervisor.run(options, ["true"], folder, descriptor) == 0
    os.close(descriptor)
    (settings,) = read_table(tmp_path, "settings").to_dict("records")
    assert row_of(tmp_path)["commit"] == json.loads(settings["met"])["commit"] == "before"


def test_quit_leaves_a_row(tmp_path):
    """Protects the row from ^\\, which terminals send as SIGQUIT."""
    folder = folder_of(tmp_path)
    process = subprocess.Popen(supervisor_command(folder, WAITS), cwd=ROOT, env=environment(), stdout=subprocess.PIPE)
    until((folder.path / "began").exists, "the run begins", 60)
    process.send_signal(signal.SIGQUIT)
    process.communicate(timeout=60)
    row = row_of(tmp_path)
    assert (process.returncode, row["status"], row["reason"]) == (131, "interrupted", "SIGQUIT to the launcher")
    assert processes_of(tmp_path) == []


SWALLOWS = "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException: pass"
ENDS = "from benchmarks.common.system.forward_signals import end_on_signals; end_on_signals()\n"
ENDED_BY = {
    "an import that swallows exceptions": ("import swallows", 130, "stopped by SIGINT\n"),
    "two signals": (
        "import os\ntry: os.kill(os.getpid(), 2)\nfinally: os.kill(os.getpid(), 15); print('tidy')",
        130,
        None,
    ),
    "a forked child": ("import os\nif not os.fork(): os.kill(os.getpid(), 15)\nprint(os.wait()[1])", 0, ""),
}


@pytest.mark.parametrize("name", ENDED_BY)
def test_a_signal_before_there_are_other_handlers(tmp_path, name):
    """Protects the end by a signal: an import cannot lose it, what is to be removed is, and a child says nothing.
    Mutants: SystemExit in an import; a second signal that exits at once; children that print the line."""
    code, returned, said = ENDED_BY[name]
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    done = subprocess.run(
        [sys.executable, "-c", ENDS + code],
        cwd=ROOT,
        env=environment(PYTHONPATH=tmp_path),
        preexec_fn=hear_sigint,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (returned, "stopped by SIGINT\n" if said is None else said)
    assert done.stdout == {"two signals": "tidy\n", "a forked child": "15\n"}.get(name, "")


def test_ctrl_c_prints_no_traceback_of_a_program_that_starts(tmp_path):
    """Protects the terminal: Ctrl-C reaches every process of the suite, and Python programs that are still importing
    printed tracebacks. Mutant: SignalForwarder.run without the mask."""
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    with forward_signals() as child_runner, open(tmp_path / "output", "w") as output:
        assert child_runner.run([sys.executable, "-c", program], stdout=output, stderr=output) == 0
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert (tmp_path / "output").read_text() == ""


def test_a_supervisor_heeds_the_ctrl_c_that_came_before_its_handlers(tmp_path):
    """Protects the fix of the test above from losing the signal. Mutant: run_command without SIG_UNBLOCK."""
    folder = folder_of(tmp_path)

    def receive() -> None:
        hear_sigint()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.kill(os.getpid(), signal.SIGINT)

    done = subprocess.run(
        supervisor_command(folder, WAITS),
        cwd=ROOT,
        env=environment(),
        preexec_fn=receive,
        capture_output=True,
        text=True,
        timeout=120,
    )
    row = row_of(tmp_path)
    assert (done.returncode, row["status"], row["reason"]) == (130, "interrupted", "SIGINT to the launcher")
    assert "Traceback" not in done.stderr and processes_of(tmp_path) == []


def test_a_signal_between_two_processes_starts_no_more(tmp_path):
    """Protects the end of a suite: a signal that came while a run's folder was made was forgotten, and the run went on
    to its end. Mutant: run without a look at what was received before."""
    with forward_signals() as child_runner:
        assert child_runner.run(["touch", tmp_path / "before"]) == 0
        os.kill(os.getpid(), signal.SIGQUIT)
        assert child_runner.run(["touch", tmp_path / "after"]) == -signal.SIGQUIT
        assert child_runner.run(["touch", tmp_path / "charts"], after_signal=True) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before", "charts"]


# --- the loop and its supervisors -----------------------------------------------------------------------------------


@pytest.fixture
def suite(recorder, checkout, tmp_path, tiny_data):
    """launchers/all.sh on the recorder; `hold` is a file that keeps a run waiting."""
    results = tmp_path / "a set"
    results.mkdir()
    (results / "environment.json").write_text("{}")  # collecting it takes seconds
    ours = {"RESULTS": results, "DATA": tiny_data, "STRATEGIES": "single", "REPEATS": 1, "PASSED_ON": OURS}
    (hold := tmp_path / "hold").touch()

    def start(results: Path = results, **popen) -> subprocess.Popen:
        env = environment(**recorder.variables | ours | {"WAIT_WHILE": hold, "RESULTS": results})
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | popen
        return subprocess.Popen([checkout / "launchers/all.sh"], env=env, preexec_fn=hear_sigint, **streams)

    start.results, start.hold, start.recorder = results, hold, recorder
    return start


def is_suite(process: subprocess.Popen) -> bool:
    """Whether Python has taken the place of bash, which ignores SIGQUIT and has children of its own."""
    return psutil.Process(process.pid).cmdline()[1:3] == ["-m", "scripts.runner.bench"]


MOMENTS = {
    "it imports": lambda process, results: is_suite(process),
    "it has the set": lambda process, results: (results / ".holder").exists(),
    "it has a folder for the run": lambda process, results: [*results.glob("logs/*")],
    "it starts the launcher": lambda process, results: is_suite(process) and psutil.Process(process.pid).children(),
}


@pytest.mark.medium
def test_quit_at_any_moment_of_the_start_ends_the_suite(suite, tmp_path):
    """Protects ^\\ in the first seconds: the suite ends, each run that was started has its row or is known to be lost,
    and no process is left. Mutant: forward_signals without SIGQUIT."""
    started = {}
    for number, (name, reached) in enumerate(MOMENTS.items()):
        results = tmp_path / f"set {number}"
        results.mkdir()
        (results / "environment.json").write_text("{}")
        process = suite(results, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        started[name] = process, results, reached
    waiting = {*started}
    while waiting:
        for name in sorted(waiting):
            process, results, reached = started[name]
            assert process.poll() is None, f"it ended before {name}"
            if reached(process, results):
                process.send_signal(signal.SIGQUIT)
                waiting.remove(name)
        time.sleep(0.02)
    for name, (process, results, _) in started.items():
        assert process.wait(60) in (-signal.SIGQUIT, 128 + signal.SIGQUIT), name
        assert processes_of(results) == [], name
        rows = {*read_table(results, "runs").run_id}
        for folder in results.glob("logs/*"):
            assert folder.name in rows or (folder / "unrecorded").exists(), name


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
def test_a_suite_goes_on_when_its_reader_or_terminal_has_gone(suite):
    """Protects `make bench-all | head -1`: all rows, all rounds, and the exit code of the suite."""
    suite.hold.unlink()
    reader, writer = os.pipe()
    os.close(reader)
    process = suite(stdout=writer, stderr=writer)
    os.close(writer)
    assert process.wait(60) == 0
    assert statuses(suite.results) == ["ok"]


@pytest.mark.medium
def test_a_killed_suite_ends_its_run_and_keeps_its_set_until_then(suite):
    """Protects the machine from two suites at once: the run of a suite that was killed (by the kernel, where memory is
    short) ends with a true row; before it has, no other suite gets the set."""
    first = suite()
    folder = until_runs(suite)
    (supervisor,) = psutil.Process(first.pid).children()
    supervisor.suspend()  # it cannot end
    first.kill()
    first.wait(60)
    second = suite()
    out, err = second.communicate(timeout=60)
    assert second.returncode == 2 and f"in use by the last run of process {first.pid}, which was killed" in err, out
    supervisor.resume()
    psutil.wait_procs([supervisor], timeout=30)
    row = read_table(suite.results, "runs").iloc[-1]
    assert (row.run_id, row.status) == (folder.name, "interrupted")
    assert processes_of(folder) == [] and not (folder / "unrecorded").exists()


@pytest.mark.medium
def test_a_run_whose_suite_and_supervisor_were_killed_has_its_row_from_the_next_suite(suite):
    """Protects "every attempt ends in one row" from the kernel, which may kill both; no process is left."""
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
    lost, again = read_table(suite.results, "runs").query("`repeat` > 0").to_dict("records")
    assert (lost["run_id"], lost["status"], again["status"]) == (folder.name, "failed", "ok")
    assert "its supervisor was killed" in lost["reason"] and lost["settings"]
    assert lost["started_at"] <= again["started_at"] and lost["commit"] == again["commit"]
    assert not [*suite.results.glob("logs/*/unrecorded")]


def test_a_run_that_is_alive_is_not_taken_for_a_lost_one(suite):
    """Protects a launcher that a person has started by hand, into a set in which a suite begins."""
    folder = folder_of(suite.results)
    by_hand = subprocess.Popen(
        supervisor_command(folder, WAITS), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL
    )
    until((folder.path / "began").exists, "the run begins", 60)
    lost_runs.record_lost_runs(suite.results)
    assert read_table(suite.results, "runs").empty
    (folder.path / "go").touch()
    assert by_hand.wait(60) == 0
    assert row_of(suite.results)["status"] == "ok"
