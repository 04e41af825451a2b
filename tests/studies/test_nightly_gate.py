"""The example of a nightly job, docs/nightly-gate.yaml: its shell, with a stand-in for ./bench. Nothing is timed."""

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
SHELL = ["bash", "--noprofile", "--norc", "-eo", "pipefail"]  # what `shell: bash` is to GitHub
WORDS = 'printf "%s\\n" "$@" >words; echo "$PYTHON $SETUP" >interpreter; exit "$CODE"'


def run_gate(folder, code: int) -> subprocess.CompletedProcess:
    put(folder, bench=WORDS, step=GATE["run"])
    env = {"PATH": os.environ["PATH"], "GITHUB_OUTPUT": "outputs", "GITHUB_STEP_SUMMARY": "summary", **GATE["env"]}
    env |= {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1", "CODE": str(code), "RUNNER_TEMP": "/a runner"}
    return subprocess.run([*SHELL, "step"], cwd=folder, env=env, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [(0, 0, ""), (1, 1, "::error::"), (2, 2, "::error::"), (3, 0, "::warning::"), (4, 4, "::error::")],
)
def test_the_job_keeps_the_exit_codes_of_ab_apart(tmp_path, code, ends, says):
    done = run_gate(tmp_path, code)
    assert (done.returncode, done.stderr) == (ends, "")
    assert (tmp_path / "outputs").read_text() == f"code={code}\n"
    assert done.stdout.startswith(says) and bool(done.stdout) == bool(says)
    assert f"exit code {code}, " in (tmp_path / "summary").read_text()


def test_the_job_types_a_command_that_there_is(tmp_path):
    run_gate(tmp_path, 0)
    command, rest = find_command((tmp_path / "words").read_text().splitlines())
    options = parse(command, rest)
    assert (command.words, options.fail_over) == ("ab", "5%")
    assert options.strategy != "ddp" and options.strategy_dir, "ddp imports no library but torch"
    assert (options.a, options.b) == ("python:/a runner/old/bin/python", "python:/a runner/new/bin/python")
    assert (tmp_path / "interpreter").read_text() == "/a runner/old/bin/python no\n"
    modules = re.findall(r"-m (scripts[\w.]+)", "".join(step.get("run", "") for step in STEPS))
    assert modules and all(importlib.util.find_spec(module) for module in modules)
