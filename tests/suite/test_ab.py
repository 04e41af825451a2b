"""`make ab`: what A and B can be, what is refused before anything starts, and real sittings that leave nothing behind.

    .venv/bin/python -m pytest tests/suite/test_ab.py
    .venv/bin/python -m pytest tests/suite/test_ab.py -m slow -s      # A/A, and a planted delay: 20 minutes, alone

The first kind asks git and starts no run; the second starts launchers of two checkouts for real.
"""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import ROOT, SYNTHETIC_YAML, environment, hear_sigint

from benchmarks.common.results import WARM_UP, read_table
from scripts.suite import ab, sides

# Short, and three windows: what is tested is the sitting, not the machine.
SHORT = SYNTHETIC_YAML + "epochs: 1\nsteps: 8\nwarmup_steps: 1\nwindows: 3\nwindow_steps: 2\nworkers: 0\n"
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]


class Clone:
    """A repository with the suite as it is here, in commits of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        for part in ("benchmarks", "configs", "launchers", "scripts"):
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / ".gitignore").write_text("__pycache__/\n/results/\n")
        (folder / "short.yaml").write_text(SHORT)
        self.git("init", "-q", "-b", "main")
        self.commit("the suite")

    def git(self, *words: str) -> str:
        return subprocess.run([*GIT, "-C", self.folder, *words], check=True, capture_output=True, text=True).stdout

    def commit(self, message: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", message)
        return self.git("rev-parse", "HEAD").strip()

    def start(self, **variables) -> subprocess.Popen:
        ours = {"CONFIG": self.folder / "short.yaml", "STRATEGY": "single", "REPEATS": 2}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = [sys.executable, "-m", "scripts.suite.ab"]
        env = environment(**ours | variables)
        return subprocess.Popen(command, cwd=self.folder, env=env, preexec_fn=hear_sigint, **pipes)

    def run(self, **variables) -> subprocess.CompletedProcess:
        process = self.start(**variables)
        out, err = process.communicate(timeout=600)
        print(out, err)
        assert "Traceback" not in err
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def left_over(self) -> list[str]:
        """Worktrees besides the clone itself, and their folders."""
        listed = self.git("worktree", "list", "--porcelain").split("\n\n")
        return [*[text for text in listed if text.strip()][1:], *self.folder.parent.glob(f"{sides.PREFIX}*")]


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """The worktrees of what it runs are made beside it, where `left_over` looks. Its path has a space."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Clone(tmp_path / "a clone")


# --- before anything starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"A": ""}, "A is not set; for example: make ab A=HEAD~1 B=tree:"),
        ({"B": "nonsense"}, "B=nonsense is no commit of this repository"),
        ({"B": "commit:--help"}, "is no commit of this repository"),
        ({"B": "tree:x"}, "tree: is this checkout, and takes nothing; leave 'x' out"),
        ({"B": "config:nowhere.yaml"}, "there is no file 'nowhere.yaml'"),
        ({"B": "python:/nowhere/python"}, "/nowhere/python is no program"),
        ({"B": "python:"}, "nothing is no program"),
        ({"FAIL_OVER": "5"}, "FAIL_OVER is '5', but must be a percentage such as 5%"),
        ({"STRATEGY": "sngle"}, "did you mean single?"),
        ({"REPEATS": "0"}, "REPEATS is 0, but must be at least 1"),
        ({"ARGS": "--global-batch 3", "STRATEGY": "ddp"}, "global_batch 3 does not divide by 2 ranks"),
    ],
)
def test_what_cannot_be_measured_is_refused(clone, variables, words):
    """Protects the reader of the message: what was wrong, in a line, exit code 2, and nothing is left behind."""
    done = clone.run(**{"A": "HEAD", "B": "tree:", "PLAN": "yes"} | variables)
    assert done.returncode == 2 and done.stderr.count("error: ") == 1 and words in done.stderr
    assert not (clone.folder / "results").exists() and clone.left_over() == []


def test_what_a_commit_lacks_is_said_before_it_is_measured(clone):
    """Protects minutes: a strategy, an option that is set, or the variables that start a launcher of any checkout."""
    good = clone.commit("the same") if clone.git("status", "--porcelain") else "HEAD"
    plan_py, config_py = (clone.folder / name for name in ("scripts/suite/plan.py", "benchmarks/common/config.py"))
    for path, old, new, variables, words in (
        (clone.folder / "launchers/single.sh", None, None, {}, "has no strategy single"),
        (plan_py, "def begin(", "def start(", {}, "older than the variables by which this checkout starts them"),
        (config_py, "    norm: Lit", "    gone: Lit", {"ARGS": "--norm group"}, "has no option norm, which is set"),
    ):
        text = path.read_text()
        path.write_text(text.replace(old, new)) if old else path.unlink()
        bad = clone.commit("bad")
        clone.git("revert", "--no-edit", "HEAD")
        done = clone.run(A=good, B=bad, PLAN="yes", **variables)
        assert done.returncode == 2 and words in done.stderr and bad[:12] in done.stderr
        assert path.read_text() == text


def test_plan_says_what_is_compared(clone):
    """Protects the reader from a comparison of other things than were meant."""
    (clone.folder / "more.yaml").write_text(SHORT + "norm: group\n")
    aa, flags, config, python = (
        clone.run(A=a, B=b, PLAN="yes").stdout
        for a, b in (
            ("HEAD", "commit:HEAD"),
            ("flags:", "flags:--lr 0.3 --norm group"),
            ("tree:", f"config:{clone.folder / 'more.yaml'}"),
            ("tree:", "python:/usr/bin/env"),
        )
    )
    assert "A and B are the same: an A/A run" in aa and "at most 2 rounds, after a warm-up of each" in aa
    assert "local changes are not measured: both sides are commits" in aa  # more.yaml
    assert "they differ in norm (batch against group), lr (0.1 against 0.3)" in flags and "A/A" not in flags
    assert "local changes are not measured" not in flags
    assert "they differ in norm (batch against group)" in config
    assert python.splitlines()[1].endswith(" /usr/bin/env") and "A/A" not in python
    clone.git("add", "-A")
    clone.git("commit", "-qm", "clean")
    assert "an A/A run" in clone.run(A="HEAD", B="tree:", PLAN="yes").stdout


# --- for real -----------------------------------------------------------------------------------------------------


def test_a_commit_and_the_tree_take_turns_and_leave_rows_only(clone):
    """Protects the whole path: both sides' own code, random order, rows that are kept, and a verdict."""
    faster = clone.folder / "benchmarks/single.py"
    faster.write_text(
        faster.read_text().replace("def step(images, target):", "def step(images, target):\n        pass\n")
    )
    results = clone.folder / "results" / "x"
    done = clone.run(A="HEAD", B="tree:", RESULTS="results/x", FAIL_OVER="5%")
    said = done.stdout.splitlines()
    assert done.returncode in (0, 1, 2) and len([line for line in said if line.startswith("round ")]) == 2
    assert any(line.startswith("sd from run to run: ") for line in said)
    assert any("images/s; 2 rounds, " in line for line in said)
    last = (done.stderr or done.stdout).splitlines()[-1]
    assert last.startswith({0: "fine: ", 1: "failed: ", 2: "not decided: "}[done.returncode])
    rows = {name: read_table(results / name, "runs") for name in "AB"}
    assert all([*rows[name].status] == [WARM_UP, "ok", "ok"] for name in "AB")
    assert {*rows["A"].dirty} == {"no"} and {*rows["B"].dirty} == {"yes"}  # each ran its own code
    found = json.loads((results / "ab.json").read_text())
    places = [rows["A"].position[number] for number in (1, 2)]
    assert [{1: "A", 2: "B"}[place] for place in places] == found["rounds"]["first"]
    assert found["rounds"]["images_per_s"]["B"] == [*rows["B"].images_per_s[1:]]
    assert found["A"]["is"] == "HEAD" and "verdict" in found["b_over_a"]
    assert clone.left_over() == []
    again = clone.run(A="HEAD", B="tree:", RESULTS="results/x")
    assert again.returncode == 2 and "holds a comparison already" in again.stderr


def test_a_commit_that_does_not_run_is_named_with_its_log(clone):
    """Protects the gate: a sentence, the log, exit code 1, and no worktree; one round allows no verdict."""
    one = clone.run(A="flags:", B="flags:", REPEATS=1, FAIL_OVER="5%")
    assert one.returncode == 2 and "no verdict: one run says nothing" in one.stdout
    assert one.stderr.splitlines()[-1].startswith("not decided: ")
    (clone.folder / "benchmarks/single.py").write_text("a syntax error\n")
    bad = clone.commit("does not build")
    done = clone.run(A="HEAD~1", B=bad)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"failed: B, {bad}: ") and "SyntaxError" in last
    assert Path(last.partition("its log: ")[2]).exists() and clone.left_over() == []


def test_a_tree_that_changes_meanwhile_has_no_verdict(clone):
    """Protects the meaning of A and B. Mutant: without the check both are measured as if they were one thing."""
    process = clone.start(A="flags:", B="flags:", REPEATS=20)
    while not [*clone.folder.glob("results/*/A/logs/single-1-*/progress")]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    (clone.folder / "new.py").write_text("")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1 and "its files were changed while they were measured" in err


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_leaves_no_process_and_no_worktree(clone, signum, code):
    """Protects the machine after Ctrl-C, and the rows so far."""
    process = clone.start(A="HEAD", B="tree:", REPEATS=20)
    while not [*clone.folder.glob("results/*/A/logs/single-1-*/progress")]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    assert clone.left_over() != []
    process.send_signal(signum)
    process.communicate(timeout=60)
    assert process.returncode == code and clone.left_over() == []
    (results,) = (clone.folder / "results").iterdir()
    assert len(read_table(results / "A", "runs")) >= 2
    alive = subprocess.run(["pgrep", "-f", str(clone.folder)], capture_output=True, text=True).stdout.split()
    assert alive == []


def test_a_killed_one_is_cleared_away_by_the_next(clone):
    """Protects a disk from the worktrees of SIGKILL."""
    process = clone.start(A="HEAD", B="tree:", REPEATS=20)
    while not [*clone.folder.glob("results/*/A/logs/single-0-*/progress")]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.kill()
    process.communicate()
    assert clone.left_over() != []
    done = clone.run(A="HEAD", B="flags:", REPEATS=1)
    assert done.returncode == 0 and clone.left_over() == []


# --- the arithmetic -----------------------------------------------------------------------------------------------


def test_the_sd_is_that_of_a_run_and_the_gate_says_which(capsys, tmp_path):
    """Protects the numbers below the verdict: ratios of two runs have twice the variance of one."""
    sitting = ab.Sitting(0, time.monotonic(), {"A": [100.0] * 4, "B": [90.0, 92.0, 90.0, 92.0]}, list("ABBA"))
    step = ab.next_step(sitting.log_ratios, 4)
    assert sitting.sd == pytest.approx(0.0219790 / 2 / 3**0.5 * 2 / 2**0.5, rel=1e-4)
    assert [ab.verdict(step, sitting, tmp_path, limit) for limit in (None, 0.01, 0.5)] == [0, 1, 0]
    close = ab.Sitting(0, time.monotonic(), {"A": [100.0] * 4, "B": [94.0, 96.0, 94.0, 96.0]}, list("ABBA"))
    assert ab.verdict(ab.next_step(close.log_ratios, 4, 0.05), close, tmp_path, 0.05) == 2
    constant = ab.Sitting(0, time.monotonic(), {"A": [100.0] * 4, "B": [90.0] * 4}, list("ABBA"))
    assert ab.verdict(ab.next_step(constant.log_ratios, 4), constant, tmp_path, 0.05) == 2
    said = capsys.readouterr()
    assert "B is slower; B/A 0.910 [" in said.out and "no verdict: every run has the same throughput" in said.out
    assert said.err.splitlines()[-1] == "not decided: whether B is slower by more than 5 %"


# --- acceptance: on a quiet machine -------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_things_are_equal_and_a_planted_delay_is_found(clone, tmp_path):
    """A/A finds no difference; a delay planted in every step of B is found: of 5 % where the sd from run to run is at
    most 4 %, else of 1.5 times the difference that the rounds find with 80 % power."""
    ours = {"CONFIG": "configs/smoke.yaml", "STRATEGY": "ddp", "DATA": ROOT / "data/imagenet-mini", "REPEATS": 20}
    assert clone.run(A="HEAD", B="HEAD", RESULTS="results/aa", **ours).returncode == 0
    aa = json.loads((clone.folder / "results/aa/ab.json").read_text())["b_over_a"]
    assert aa["verdict"] == "no difference seen"
    slower = 0.05 if aa["sd_of_runs"] <= 0.04 else 1.5 * aa["smallest_difference"]
    step_s = read_table(clone.folder / "results/aa/A", "runs").step_ms_p50.median() / 1000
    wrapper = tmp_path / "slow python"
    wrapper.write_text(
        f'#!/bin/bash\nexport PYTHONPATH="{ROOT}/tests/faults" FAULT=slow SLOW_S={step_s * slower / (1 - slower)}\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    wrapper.chmod(0o755)
    done = clone.run(A="HEAD", B=f"python:{wrapper}", RESULTS="results/late", **ours)
    late = json.loads((clone.folder / "results/late/ab.json").read_text())["b_over_a"]
    print(f"planted {100 * slower:.1f} %, found {100 * (1 - late['value']):.1f} %")
    assert done.returncode == 0 and late["verdict"] == "slower"
