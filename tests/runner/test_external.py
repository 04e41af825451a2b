"""Strategies of another repository: who finds them, what their settings say, and what refuses them.

.venv/bin/python -m pytest tests/runner/test_external.py
"""

import dataclasses
import shutil
import subprocess

import pytest
from support import ROOT, environment, run_strategy

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.run_folder import RunFolder
from scripts.results.identity import Identity, comparable
from scripts.results.settings import requested_settings
from scripts.runner import plan
from scripts.shared import run_external, strategy_list
from scripts.shared.external import STRATEGY_SOURCE, source_hash


@pytest.fixture
def others(tmp_path):
    """The folder of another repository, whose strategy `mine` has a module of its own beside it."""
    folder = tmp_path / "other repository"
    (folder / ".venv").mkdir(parents=True)
    (folder / ".venv" / "library.py").write_text("")
    (folder / "my_helper.py").write_text("RATE = 1\n")
    text = (ROOT / "benchmarks" / "ddp.py").read_text()
    (folder / "mine.py").write_text(text.replace("import torch\n", "import my_helper\nimport torch\n", 1))
    source_hash.cache_clear()
    return folder


def bench(*words, **variables):
    env = environment(SETUP="no", **variables)
    return subprocess.run([ROOT / "bench", *map(str, words)], cwd=ROOT, env=env, capture_output=True, text=True)


@pytest.mark.launches
def test_only_the_option_names_a_folder_of_strategies(others, tiny_config, tiny_data):
    """Protects from code that a variable in the environment would choose."""
    words = ("run", "single", "mine", "--plan", "--config", tiny_config, "--data", tiny_data)
    planned = bench(*words, "--strategy-dir", others)
    assert planned.returncode == 0 and "round 3  mine" in planned.stdout, planned.stdout + planned.stderr
    refused = bench(*words, STRATEGY_DIR=others)
    assert refused.returncode == 2 and "no strategy 'mine'" in refused.stderr
    missing = bench(*words, "--strategy-dir", others / "gone")
    assert missing.returncode == 2 and "there is no such folder" in missing.stderr


@pytest.mark.launches
def test_a_strategy_of_another_repository_trains(others, tmp_path, tiny_data, tiny_config):
    """Protects the whole path: two real ranks, its own module, its row and the hash of its code. A file that changes
    after the plan ends the run."""
    own = {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2, "STRATEGY_DIR": others, "EXTERNAL_STRATEGY": "mine"}
    row = run_strategy("external", tmp_path / "set", "--epochs 1", **own)
    assert (row["status"], row["strategy"], row["world_size"]) == ("ok", "mine", 2), row["reason"]
    (folder,) = (tmp_path / "set" / "logs").iterdir()
    assert RunFolder(folder).requested()[STRATEGY_SOURCE] == source_hash(others)


def test_code_that_changed_since_the_plan_is_not_run(others, tmp_path, monkeypatch):
    """Protects the hash in the settings: it is of the code that ran. Mutant: no look at the plan."""
    monkeypatch.setenv("STRATEGY_DIR", str(others))
    folder = RunFolder.create(tmp_path / "set", "mine", 1)
    folder.write_plan(Config(), {"strategy": "mine", STRATEGY_SOURCE: source_hash(others)})
    monkeypatch.setenv("RUN_DIR", str(folder.path))
    (others / "my_helper.py").write_text("RATE = 2\n")
    source_hash.cache_clear()
    with pytest.raises(UserError, match="have changed since the run was planned"):
        run_external.main("mine", [])


@pytest.mark.parametrize(
    "line", ["import no_such_library", "raise KeyError('x')", "import sys; sys.exit('no')", "1 / 0"]
)
def test_a_script_that_cannot_be_imported_is_named(others, monkeypatch, line):
    """Protects who reads the message: the file, the exception and its line. Mutants: ImportError alone; SystemExit
    passes, whose code is 1."""
    monkeypatch.setenv("STRATEGY_DIR", str(others))
    (others / "broken.py").write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=r"broken.py cannot be imported by .*(Error|Exit): .*broken.py, line 2\)"):
        strategy_list.load_script("broken")


def test_names_of_another_repository(others, monkeypatch, make_request):
    """Protects `all`, the strategies of this repository, and files outside of the folder."""
    variables = make_request(STRATEGY_DIR=others, STRATEGIES="single mine")
    assert strategy_list.parse_strategies("single mine") == ["single", "mine"]
    assert "mine" not in strategy_list.parse_strategies("all")
    assert strategy_list.script_of("mine") == others / "mine.py" and strategy_list.load_script("mine").build
    (run,) = [run for run in plan.plan_strategies(variables) if run.strategy == "mine"]
    assert run.requested[STRATEGY_SOURCE] == source_hash(others) and run.variables["EXTERNAL_STRATEGY"] == "mine"
    for name in ("../mine", "mine.py", ""):
        assert not strategy_list.is_known(name)
    with pytest.raises(UserError, match=r"no strategy 'yours'; .* mine"):
        strategy_list.parse_strategies("yours")
    with pytest.raises(UserError, match=r"did you mean mine\?"):
        strategy_list.parse_strategies("mine2")
    shutil.copy(others / "mine.py", others / "ddp.py")
    with pytest.raises(UserError, match="name of a strategy of this repository"):
        strategy_list.parse_strategies("ddp")
    (others / "bare.py").write_text("")
    with pytest.raises(UserError, match="no function build"):
        strategy_list.load_script("bare")


def test_all_of_its_options_count_and_it_is_compared_with_the_baseline():
    """Protects the groups: nobody here knows which options it reads. Mutant: Identity asks READERS all the same."""

    def identity(strategy: str, **own) -> Identity:
        config = Config(bucket_cap_mb=own.pop("bucket_cap_mb", 0))
        return Identity(
            requested_settings(config, strategy, 2, 1, 1, "a") | own, {"device": "cpu", "precision": "fp32"}
        )

    small, large = (identity("mine", bucket_cap_mb=size, **{STRATEGY_SOURCE: "a"}) for size in (1, 25))
    assert small.key != large.key
    assert comparable(small, identity("single"))
    other = dataclasses.replace(small, requested=small.requested | {STRATEGY_SOURCE: "b"})
    assert other.key != small.key
