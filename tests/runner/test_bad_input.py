"""What a user can get wrong: the message says what, where and what to do; the exit code is 2; nothing is lost.

.venv/bin/python -m pytest tests/runner/test_bad_input.py
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import OURS, bench_words, environment, run_strategy, start_bench

from benchmarks.common.errors import UserError
from benchmarks.common.rows import read_table
from scripts.runner import loop


def without_val(data):
    shutil.rmtree(data / "val")


@pytest.fixture
def refuse(make_request, tiny_config):
    """refuse(**variables): the message with which a `make bench-all` of these variables is refused before any run."""

    def refusal(**variables) -> str:
        with pytest.raises(UserError) as caught:
            loop.main(make_request(**{"CONFIG": tiny_config, "STRATEGIES": "single ddp", "REPEATS": 1} | variables))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refusal


@pytest.fixture
def refuse_program(checkout, tmp_path, tiny_config):
    """refuse_program(**variables): stderr of a ./bench run that must end with exit code 2 before any run."""

    def start(**variables) -> str:
        before = set((checkout / "results").glob("*"))
        ours = {"CONFIG": tiny_config, "STRATEGIES": "single ddp", "REPEATS": 1} | variables
        done = start_bench(checkout, popen=subprocess.run, **ours, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2, done.stdout + done.stderr
        assert "Traceback" not in done.stderr and done.stdout == ""
        assert set((checkout / "results").glob("*")) == before, "a result set was left behind"
        return done.stderr

    return start


# --- refused before the first run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spoil, words",
    [
        (shutil.rmtree, ["does not exist; set --data to"]),
        (without_val, ["val/ is not there; expected train/<class>/"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_unfit_data_set(refuse, own_data, spoil, words):
    """Protects minutes of set-up: the folder is checked before anything starts, and named."""
    spoil(own_data)
    message = refuse(DATA=own_data)
    assert all(word in message for word in [str(own_data), *words]), message


@pytest.mark.parametrize(
    "variables, words",
    [
        ({"STRATEGIES": "single dpp"}, ["no strategy 'dpp'; did you mean ddp?"]),
        ({"STRATEGIES": "quantum"}, ["no strategy 'quantum'; there are single, dataparallel, ddp"]),
        ({"NUM_GPUS": 1, "NPROC": 2}, ["--nproc asks for 2 ranks, but only 1 GPUs can be seen; lower --nproc"]),
        ({"REPEATS": 0}, ["--repeats is 0, but must be at least 1"]),
        ({"CONFIG": "configs/nowhere.yaml"}, ["cannot read the configuration configs/nowhere.yaml"]),
        ({"ARGS": "--lr -1"}, ["lr is -1.0, but must be at least 0"]),
        (
            {"AA": "yes", "ARGS": "--label again"},
            ["--aa gives its second runs the label again: leave out --label again"],
        ),
    ],
)
def test_an_unfit_setting(refuse, tiny_data, variables, words):
    """Protects the user's time: the nearest name, or the number to use, in one line."""
    message = refuse(DATA=tiny_data, **variables)
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    "text, words",
    [("arch: resnet5O", ["arch is 'resnet5O'; did you mean resnet50?"]), ("epoch: 3", ["did you mean `epochs`?"])],
)
def test_an_unknown_arch_or_key_in_a_file(refuse, tiny_data, tmp_path, text, words):
    """Protects a run from going on with a default where the user wanted something else."""
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    message = refuse(DATA=tiny_data, CONFIG=path)
    assert all(word in message for word in [str(path), *words]), message


def test_an_unknown_flag(refuse_program, tiny_data):
    """Protects the same for a flag, in one line."""
    message = refuse_program(DATA=tiny_data, ARGS="--global-bach 8")
    assert "--global-bach" in message and "global_batch" in message and message.count("\n") == 1


def test_an_unwritable_results_folder(refuse, tiny_data, tmp_path):
    """Protects hours of measuring into nowhere. Root can write anywhere but below a file and into /proc."""
    (tmp_path / "file").write_text("not a folder")
    for results in (tmp_path / "file" / "a set", Path("/proc/a set")):
        message = refuse(DATA=tiny_data, RESULTS=results)
        assert f"--results {results} cannot be written: " in message and "choose another folder" in message


@pytest.mark.launches
def test_more_ranks_than_cores_is_a_warning_and_a_mark_in_the_row(recorder, checkout, tiny_data, tmp_path):
    """Protects the reader of a row: ranks that shared a core did not run side by side. GPUs are another matter."""
    core = min(os.sched_getaffinity(0))
    rows = {}
    for nproc, num_gpus in ((2, 0), (1, 0), (2, 2)):
        results = tmp_path / f"set {nproc} {num_gpus}"
        results.mkdir()
        (results / "environment.json").write_text("{}")
        words, _ = bench_words(RESULTS=results, DATA=tiny_data, STRATEGIES="ddp", REPEATS=1, NPROC=nproc)
        env = environment(**recorder.variables | {"PASSED_ON": OURS}, NUM_GPUS=num_gpus, SETUP="no")
        command = ["taskset", "--cpu-list", str(core), sys.executable, checkout / "bench", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        (row,) = read_table(results, "runs").to_dict("records")
        rows[nproc, num_gpus] = row["oversubscribed"], "warning: 2 ranks share 1 cores" in done.stderr
    assert rows == {(2, 0): ("yes", True), (1, 0): ("no", False), (2, 2): ("no", False)}


# --- refused by the run -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, part", [("ddp", "train"), pytest.param("ddp_spawn", "val", marks=pytest.mark.launches)])
def test_a_file_that_is_no_image_is_named_in_the_row(own_data, tiny_config, tmp_path, name, part):
    """Protects two ranks from a hang where one of them meets the file: the row names it, and no process is left."""
    bad = sorted((own_data / part).rglob("*.JPEG"))[-1]
    bad.write_bytes(bad.read_bytes()[:700] if part == "train" else b"<html>not found</html>")
    row = run_strategy(name, tmp_path / "a set", DATA=own_data, CONFIG=tiny_config, args="--limit-s 200", NPROC=2)
    assert (row["status"], row["launcher_exit_code"]) == ("failed", 1), row["reason"]
    assert str(bad) in row["reason"] and "--skip-bad-files" in row["reason"]
    assert row["reason"].startswith(("rank 0: ", "rank 1: "))
    assert not [each for each in Path("/proc").glob("[0-9]*/environ") if _holds(each, str(tmp_path / "a set"))]


def _holds(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:  # it has ended meanwhile
        return False
