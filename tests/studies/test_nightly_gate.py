"""The example of a nightly job, docs/nightly-gate.yaml: its shell, with a stand-in for ./bench. Nothing is timed.

.venv/bin/python -m pytest tests/studies/test_nightly_gate.py
"""

import importlib.util
import os
import re
import subprocess

import pytest
import yaml
from support import ROOT, put

from scripts.cli.command_table import find_command
from scripts.cli.run_command import parse

STEPS = yaml.safe_load((ROOT / "docs" / "nightly-gate.yaml").read_text())["jobs"]["gate"]["steps"]
(GATE,) = [step for step in STEPS if "./bench ab" in step.get("run", "")]
(AFTER,) = [step for step in STEPS if "pip freeze" in step.get("run", "")]
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what `shell: bash` is to GitHub
WORDS = 'printf "%s\\n" "$@" >words; echo "$PYTHON $SETUP" >interpreter; exit "$CODE"'


@pytest.fixture
def gate(tmp_path):
    """gate(code): the step, where ./bench ends with this code; (its exit code, what it printed, outputs, summary)."""

    def run(code: int) -> tuple[int, str, str, str]:
        put(tmp_path, bench=WORDS)
        (tmp_path / "step").write_text(GATE["run"])
        env = {"PATH": os.environ["PATH"], "CODE": str(code), "RUNNER_TEMP": "/a runner", **GATE["env"]}
        env |= {"GITHUB_OUTPUT": "outputs", "GITHUB_STEP_SUMMARY": "summary"}
        env |= {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}
        done = subprocess.run([*SHELL, "step"], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert not done.stderr
        return done.returncode, done.stdout, *((tmp_path / name).read_text() for name in ("outputs", "summary"))

    return run


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        (0, 0, ""),
        (1, 1, "::error::"),
        (2, 2, "::error::"),
        (3, 0, "::warning::"),
        (4, 4, "::error::"),
        (143, 143, "::error::"),
    ],
)
def test_the_job_keeps_the_exit_codes_of_ab_apart(gate, code, ends, says):
    """Protects the maintainer who reads a green or a red night: undecided is neither slower nor fine, and what was not
    measured does not pass. Mutants: `|| true`; 3 that fails; a case without 2."""
    ended, printed, outputs, summary = gate(code)
    assert (ended, outputs) == (ends, f"code={code}\n")
    assert printed.startswith(says) and bool(printed) == bool(says)
    assert f"exit code {code}, " in summary


def test_each_exit_code_has_words_of_its_own(gate, tmp_path):
    """Protects the summary: the words of one code do not stand for another."""
    texts = set()
    for code in (0, 1, 2, 3, 4, 143):
        texts.add(gate(code)[3].split(", ", 1)[1])
        (tmp_path / "summary").unlink()
        (tmp_path / "outputs").unlink()
    assert len(texts) == 6


def test_the_job_types_a_command_that_there_is(gate, tmp_path):
    """Protects the example from an option that was renamed, and from an interpreter that is not one of the two."""
    gate(0)
    words = (tmp_path / "words").read_text().splitlines()
    command, rest = find_command(words)
    options = parse(command, rest)
    assert (command.words, options.fail_over) == ("ab", "5%")
    assert options.strategy != "ddp" and options.strategy_dir, "ddp imports no library but torch"
    assert (options.a, options.b) == ("python:/a runner/old/bin/python", "python:/a runner/new/bin/python")
    assert (tmp_path / "interpreter").read_text() == "/a runner/old/bin/python no\n"
    modules = re.findall(r"-m (scripts[\w.]+)", "".join(step.get("run", "") for step in STEPS))
    assert modules and all(importlib.util.find_spec(module) for module in modules)


def test_both_interpreters_are_kept_and_their_difference_is_said(tmp_path):
    """Protects who looks for the cause of a slow night: which packages differ, also after a night without a set.
    Mutants: no mkdir; new.txt alone."""
    temp = tmp_path / "a runner"
    for version, number in (("old", 1), ("new", 2)):
        (temp / version / "bin").mkdir(parents=True)
        put(temp / version / "bin", python=f"echo torch==3; echo yours=={number}")
    (tmp_path / "step").write_text(AFTER["run"])
    env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(temp), "GITHUB_STEP_SUMMARY": "summary", **AFTER["env"]}
    env |= {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}
    done = subprocess.run([*SHELL, "step"], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    kept = tmp_path / "results" / "nightly-7-1"
    assert (kept / "old.txt").read_text() == "torch==3\nyours==1\n" and (kept / "new.txt").read_text().endswith("==2\n")
    summary = (tmp_path / "summary").read_text()
    assert "    < yours==1\n" in summary and "    > yours==2\n" in summary and "torch" not in summary


def test_the_example_is_not_active():
    """Protects this repository's own runners: only a copy in .github/workflows would start."""
    assert [path.name for path in (ROOT / ".github" / "workflows").iterdir()] == ["ci.yml"]


@pytest.mark.parametrize("path", [".github/workflows/ci.yml", "docs/nightly-gate.yaml"])
def test_actions_are_those_of_one_commit(path):
    """Protects a runner from an action whose tag somebody has moved, and its token from what runs after the checkout.
    Mutants: a tag; persist-credentials left out."""
    text = (ROOT / path).read_text()
    actions = re.findall(r"uses: (\S+)", text)
    assert actions and all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", each) for each in actions)
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
