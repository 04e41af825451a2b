"""Strategies of another repository: who finds them, what their settings say, and what refuses them."""

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
    folder.mkdir()
    (folder / "my_helper.py").write_text("RATE = 1\n")
    text = (ROOT / "benchmarks" / "ddp.py").read_text()
    (folder / "mine.py").write_text(text.replace("import torch\n", "import my_helper\nimport torch\n", 1))
    source_hash.cache_clear()
    return folder


@pytest.mark.launches
def test_a_strategy_of_another_repository_is_planned_and_trains(others, tmp_path, tiny_data, tiny_config):
    """Two real ranks, its own module, its row and the hash of its code."""
    words = ["run", "mine", "--plan", "--config", tiny_config, "--data", tiny_data, "--strategy-dir", others]
    planned = subprocess.run([ROOT / "bench", *words], env=environment(SETUP="no"), capture_output=True, text=True)
    assert planned.returncode == 0 and "round 3  mine" in planned.stdout, planned.stdout + planned.stderr
    own = {"DATA": tiny_data, "CONFIG": tiny_config, "NPROC": 2, "STRATEGY_DIR": others, "EXTERNAL_STRATEGY": "mine"}
    row = run_strategy("external", tmp_path / "set", "--epochs 1", **own)
    assert (row["status"], row["strategy"], row["world_size"]) == ("ok", "mine", 2), row["reason"]
    (folder,) = (tmp_path / "set" / "logs").iterdir()
    assert RunFolder(folder).requested()[STRATEGY_SOURCE] == source_hash(others)


def test_code_that_changed_since_the_plan_is_not_run(others, tmp_path, monkeypatch):
    """The hash in the settings is of the code that ran."""
    monkeypatch.setenv("STRATEGY_DIR", str(others))
    folder = RunFolder.create(tmp_path / "set", "mine", 1)
    folder.write_plan(Config(), {"strategy": "mine", STRATEGY_SOURCE: source_hash(others)})
    monkeypatch.setenv("RUN_DIR", str(folder.path))
    (others / "my_helper.py").write_text("RATE = 2\n")
    source_hash.cache_clear()
    with pytest.raises(UserError, match="have changed since the run was planned"):
        run_external.main("mine", [])


@pytest.mark.parametrize("line", ["import no_such_library", "import sys; sys.exit('no')"])
def test_a_script_that_cannot_be_imported_is_named(others, monkeypatch, line):
    monkeypatch.setenv("STRATEGY_DIR", str(others))
    (others / "broken.py").write_text(f"\n{line}\n")
    with pytest.raises(UserError, match=r"broken.py cannot be imported by .*(Error|Exit): .*broken.py, line 2\)"):
        strategy_list.load_script("broken")


def test_names_of_another_repository(others, make_request):
    request = make_request(STRATEGY_DIR=others, STRATEGIES="single mine")
    assert "mine" not in strategy_list.parse_strategies("all")
    assert strategy_list.script_of("mine") == others / "mine.py" and strategy_list.load_script("mine").build
    (run,) = [run for run in plan.plan_strategies(request) if run.strategy == "mine"]
    assert run.requested[STRATEGY_SOURCE] == source_hash(others) and run.variables["EXTERNAL_STRATEGY"] == "mine"
    assert not strategy_list.is_known("../mine")
    shutil.copy(others / "mine.py", others / "ddp.py")
    (others / "bare.py").write_text("")
    for name, why in (
        ("mine2", r"did you mean mine\?"),
        ("ddp", "name of a strategy of this repository"),
    ):
        with pytest.raises(UserError, match=why):
            strategy_list.parse_strategies(name)
    with pytest.raises(UserError, match="no function build"):
        strategy_list.load_script("bare")


def test_all_of_its_options_count_and_it_is_compared_with_the_baseline():
    """Nobody here knows which options it reads."""

    def identity(strategy: str, bucket_cap_mb: int = 0, **own) -> Identity:
        requested = requested_settings(Config(bucket_cap_mb=bucket_cap_mb), strategy, 2, 1, 1, "a") | own
        return Identity(requested, {"device": "cpu", "precision": "fp32"})

    small, large, other = (
        identity("mine", size, **{STRATEGY_SOURCE: text}) for size, text in ((1, "a"), (25, "a"), (1, "b"))
    )
    assert len({small.key, large.key, other.key}) == 3
    assert comparable(small, identity("single"))
