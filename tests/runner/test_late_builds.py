"""Libraries that take minutes to compile: built after the first results, while nothing is timed.

.venv/bin/python -m pytest tests/runner/test_late_builds.py
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, environment, put

from benchmarks.common.rows import read_table
from scripts.commands import start
from scripts.runner import late_builds
from scripts.runner.run_plan import plan_strategies
from scripts.setup import libraries
from scripts.shared.forward_signals import SignalForwarder

HOROVOD = """
[ "$BUILD" = yes ] || { echo "horovod has to be built"; exit 3; }
cat "$RESULTS_SEEN/runs.csv" >"$RESULTS_SEEN/seen.csv"
"""


@pytest.mark.slow  # two minutes of processor time: four real runs, each with its imports
@pytest.mark.real_interpreter  # .venv/bin/python is what set-up has made
def test_a_suite_builds_a_library_after_the_other_runs_of_its_first_round(checkout, tmp_path, tiny_config, tiny_data):
    """Protects the first chart, which waits for no compiler, and the order in the rows. Mutants: the build in set-up;
    the strategy stays at its place; the versions stay those of the start."""
    clone = tmp_path / "own checkout"
    shutil.copytree(checkout, clone, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [ROOT / "bench", *ROOT.glob("requirements*")]:
        shutil.copy(path, clone)
    (clone / ".venv").mkdir()
    put(clone / ".venv/bin", python=f'exec {shlex.quote(sys.executable)} "$@"')
    put(clone / "scripts/setup", **{"install_horovod.sh": HOROVOD, "install_apex.sh": "exit 0"})
    (clone / ".venv/.ready").touch()
    results = tmp_path / "a set"
    results.mkdir()
    (results / "environment.json").write_text('{"packages": {}, "schema": 1}')
    env = environment(CONFIG=tiny_config, DATA=tiny_data, RESULTS_SEEN=results)
    del env["PYTHON"]
    words = ["run", "horovod_ddp", "single", "ddp", "--repeats", "1", "--results", results]
    done = subprocess.run([clone / "bench", *words], env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = read_table(results, "runs")
    rows = rows[rows["repeat"] == 1]
    assert rows.strategy.tolist()[-1] == "horovod_ddp" and rows.position.tolist() == [1, 2, 3]
    seen = [line.split(",") for line in (results / "seen.csv").read_text().splitlines()]
    assert len(seen) == 1 + 1 + 2, "a header, the warm-up, and the two other strategies"
    assert (clone / ".venv" / libraries.MARK).read_text() == ""
    written = json.loads((results / "environment.json").read_text())
    assert written["packages"]["torch"] and written["schema"] == 1


def test_a_build_comes_before_its_run_and_once(make_variables, tmp_path, monkeypatch):
    """Protects the wiring of the suite. Mutant: every run builds."""
    commands = []

    class Children:
        signum = 0

        def run(self, command, **popen):
            commands.append([str(word) for word in command])
            return 0

    runs = plan_strategies(make_variables(STRATEGIES="ddp horovod_ddp", REPEATS=1))
    ddp, waiting = sorted(runs, key=lambda run: run.strategy)
    monkeypatch.setattr(late_builds, "VENV", tmp_path)
    monkeypatch.setenv("PYTHON", str(tmp_path / "bin/python"))
    monkeypatch.delenv("SETUP", raising=False)
    builds = late_builds.LateBuilds(tmp_path, Children())
    (tmp_path / libraries.MARK).write_text("horovod")
    builds(ddp, None)
    assert commands == []
    builds(waiting, None)
    builds(waiting, None)
    assert commands == [[str(ROOT / script)] for script in libraries.SCRIPTS.values()] and builds.spent_s > 0


def test_a_damaged_environment_json_is_left_alone(tmp_path, monkeypatch, capsys):
    """Protects a suite from ending in the middle."""
    monkeypatch.setattr(late_builds, "VENV", tmp_path)
    late_builds.build_now(tmp_path, SignalForwarder())
    assert capsys.readouterr().err == ""
    (path := tmp_path / "environment.json").write_text("{")
    late_builds.build_now(tmp_path, SignalForwarder())
    assert "gets no new versions" in capsys.readouterr().err and path.read_text() == "{"


def test_those_that_wait_for_a_build_come_last_in_the_first_round_only(make_variables, monkeypatch):
    """Protects the later rounds' balanced order. Mutant: every round is sorted."""
    runs = plan_strategies(make_variables(STRATEGIES="horovod_ddp single ddp dataparallel", REPEATS=3))
    monkeypatch.setattr(late_builds, "needs_build", lambda strategy: strategy == "horovod_ddp")
    moved = late_builds.put_last(runs)
    assert moved[4:] == runs[4:] and [run.position for run in moved[:4]] == [1, 2, 3, 4]
    others = [run.strategy for run in runs[:4] if run.strategy != "horovod_ddp"]
    assert [run.strategy for run in moved[:4]] == [*others, "horovod_ddp"]
    monkeypatch.setattr(late_builds, "needs_build", lambda strategy: False)
    assert late_builds.put_last(runs) == runs and late_builds.put_last([]) == []


@pytest.mark.parametrize(
    ("words", "may_defer"),
    [("run ddp", True), ("compare a b", True), ("data import a b", True),
     ("decide a b", True), ("make bench-all", True), ("ab a b", False),
     ("slurm all", False), ("verify", False), ("setup", False)],
)  # fmt: skip
def test_what_runs_no_strategy_waits_for_no_build(monkeypatch, words, may_defer):
    """Protects who compares two sets, or imports images, on a login node: Horovod was compiled first. Mutant: suites
    alone are let go on."""
    asked = []
    monkeypatch.setattr(start, "prepare", lambda **options: asked.append(options["may_defer"]))
    monkeypatch.setattr(start, "can_start", lambda python: False)
    monkeypatch.setattr(start, "end_on_signals", lambda: None)
    with pytest.raises(SystemExit):
        start.start(words.split())
    assert asked == [may_defer]


@pytest.mark.parametrize(
    ("codes", "may_defer", "left"),
    [
        ({"horovod": 3}, True, ["horovod"]),
        ({"horovod": 0}, True, []),
        ({"horovod": 1, "apex": 1}, False, []),  # tried once
        ({"horovod": 143, "apex": -15}, False, ["horovod", "apex"]),
        ({"horovod": 130}, False, ["horovod"]),
    ],
)
def test_a_build_that_a_signal_ends_is_done_later(tmp_path, codes, may_defer, left):
    """Protects Horovod from a Ctrl-C that came while it was built. Mutant: any end counts as tried."""
    started = []

    def run(command: list[Path], **popen) -> int:
        started.append(popen["env"]["BUILD"])
        (name,) = (name for name, script in libraries.SCRIPTS.items() if command == [ROOT / script])
        return codes.get(name, 0)

    libraries.build_libraries(tmp_path, may_defer=may_defer, run=run)
    assert libraries.deferred_libraries(tmp_path) == left
    assert started == ["no" if may_defer else "yes"] * 2


def test_an_interpreter_of_the_users_own_gets_no_build(tmp_path, monkeypatch):
    """Protects a cluster's environment. Mutants: SETUP=no is not asked; PYTHON is not asked."""
    monkeypatch.setattr(late_builds, "VENV", tmp_path)
    (tmp_path / libraries.MARK).write_text("horovod some_other")
    monkeypatch.delenv("SETUP", raising=False)
    monkeypatch.setenv("PYTHON", os.fspath(tmp_path / "bin/python"))
    assert late_builds.needs_build("horovod_ddp") and not late_builds.needs_build("apex_ddp")
    monkeypatch.setenv("SETUP", "no")
    assert not late_builds.needs_build("horovod_ddp")
    monkeypatch.delenv("SETUP")
    monkeypatch.setenv("PYTHON", "/usr/bin/python3")
    assert not late_builds.needs_build("horovod_ddp")
