"""What a user can get wrong: the message says what, where and what to do; the exit code is 2; nothing is lost."""

import shutil

import pytest
from fault_runs import processes_of
from support import run_strategy

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.run_folder import RunFolder
from scripts.runner import loop, preflight, record


@pytest.fixture
def refuse(make_request, tiny_config):
    """refuse(**variables): the message with which a `make bench-all` of these variables is refused before any run."""

    def refusal(**variables) -> str:
        with pytest.raises(UserError) as caught:
            loop.main(make_request(**{"CONFIG": tiny_config, "STRATEGIES": "single ddp", "REPEATS": 1} | variables))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refusal


def test_an_unfit_data_set(refuse, own_data):
    shutil.rmtree(own_data / "val")
    message = refuse(DATA=own_data)
    assert str(own_data) in message and "val/ is not there; expected train/<class>/" in message


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"STRATEGIES": "single dpp"}, "no strategy 'dpp'; did you mean ddp?"),
        ({"STRATEGIES": "quantum"}, "no strategy 'quantum'; there are single, dataparallel, ddp"),
        ({"REPEATS": 0}, "--repeats is 0, but must be at least 1"),
    ],
)
def test_an_unfit_setting(refuse, tiny_data, variables, words):
    assert words in refuse(DATA=tiny_data, **variables)


def test_an_unwritable_results_folder(refuse, tiny_data, tmp_path):
    """Root can write anywhere but below a file."""
    (tmp_path / "file").write_text("not a folder")
    results = tmp_path / "file" / "a set"
    assert f"--results {results} cannot be written: " in refuse(DATA=tiny_data, RESULTS=results)


@pytest.mark.parametrize(("ranks", "num_gpus", "shared"), [(2, 0, True), (1, 0, False), (2, 2, False)])
def test_more_ranks_than_cores_is_a_warning_and_a_mark_in_the_row(
    monkeypatch, capsys, tmp_path, ranks, num_gpus, shared
):
    """Ranks that shared a core did not run side by side. GPUs are another matter."""
    monkeypatch.setattr(preflight.machine, "num_gpus", lambda: num_gpus)
    monkeypatch.setattr(preflight.machine, "num_cores", lambda: 1)
    preflight.check_ranks([Config()], [ranks])
    assert ("warning: 2 ranks share 1 cores" in capsys.readouterr().err) == shared
    folder = RunFolder.create(tmp_path, "ddp", 1)
    plan = {"strategy": "ddp", "round": 1, "position": 1, "flags": "", "requested": {}}
    env = {"NPROC": str(ranks), "NUM_CORES": "1", "NUM_GPUS": str(num_gpus)}
    assert record.row_at_start(folder, plan, env)["oversubscribed"] == shared


@pytest.mark.launches
def test_a_file_that_is_no_image_is_named_in_the_row(own_data, tiny_config, tmp_path):
    """Two ranks, of which one meets the file, do not hang, and no process is left."""
    bad = sorted((own_data / "train").rglob("*.JPEG"))[-1]
    bad.write_bytes(bad.read_bytes()[:700])
    row = run_strategy("ddp", tmp_path / "a set", DATA=own_data, CONFIG=tiny_config, args="--limit-s 200", NPROC=2)
    assert (row["status"], row["launcher_exit_code"]) == ("failed", 1), row["reason"]
    assert str(bad) in row["reason"] and "repair or remove" in row["reason"]
    assert row["reason"].startswith(("rank 0: ", "rank 1: "))
    assert processes_of(tmp_path) == []
