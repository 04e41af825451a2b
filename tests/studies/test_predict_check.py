"""./bench study predict-check: interleaved windows of real processes; those without communication feed the prediction.

.venv/bin/python -m pytest tests/studies/test_predict_check.py
"""

import subprocess
import sys

import pandas
import pytest
from fake_gpus import see_gpus
from support import PATTERNS, ROOT, environment

from benchmarks.common.system.errors import UserError
from scripts.studies.predict.measure import PredictCheckOptions, main
from scripts.studies.predict.prediction_error import ALONE, SIDE_BY_SIDE


def test_an_interval_needs_rounds():
    with pytest.raises(UserError, match="3 or more"):
        main(PredictCheckOptions(rounds=2))


def file_at(folder):
    """Where no folder can be made, so that a check which lets everything through fails at once."""
    (folder / "a file").touch()
    return folder / "a file"


@pytest.mark.parametrize("reported", ["", "0"])
def test_gpus_are_refused(monkeypatch, tmp_path, reported):
    """Protects from processes 'by themselves' that share a GPU, and from gloo's links beside NCCL's steps: ranks take
    the GPUs that they see, whatever NUM_GPUS says."""
    see_gpus(monkeypatch, 2)
    monkeypatch.setenv("NUM_GPUS", reported)
    with pytest.raises(UserError, match=r"CPUs and gloo only; CUDA_VISIBLE_DEVICES= \./bench study predict-check"):
        main(PredictCheckOptions(out=file_at(tmp_path)))


def test_data_are_those_of_the_variable(monkeypatch, tmp_path):
    """Protects DATA=: without images there it is refused before anything is started."""
    monkeypatch.setenv("DATA", str(tmp_path / "no images"))
    with pytest.raises(UserError, match="no images"):
        main(PredictCheckOptions(out=file_at(tmp_path)))


def test_impossible_cases_are_refused_before_a_worker_starts(tiny_data, tmp_path, monkeypatch):
    """Protects the minutes that the cases before a mistake take. Mutant: each is looked at when its turn comes."""
    monkeypatch.setenv("DATA", str(tiny_data))
    with pytest.raises(UserError, match="image_size is -1"):
        main(PredictCheckOptions(out=file_at(tmp_path), image_sizes=(48, -1)))


@pytest.fixture(scope="module")
def session(tmp_path_factory, tiny_data, tiny_config):
    """(what it printed, its folder) of one small case of each strategy."""
    out = tmp_path_factory.mktemp("a check")
    words = "--archs resnet18 --image-sizes 32 --rounds 3 --window-steps 2".split()
    command = [sys.executable, "-m", "scripts.studies.predict.measure", "--out", str(out)]
    command += ["--config", str(tiny_config), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment(DATA=tiny_data), capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, out


@pytest.mark.slow
def test_every_kind_of_window_is_in_every_round(session):
    """Protects the fairness of the session: each kind once per round."""
    output, out = session
    names = ("alone", "exchange", "measured", "gradients")
    alone, exchange, measured, gradients = (pandas.read_csv(out / f"{name}.csv") for name in names)
    assert {*gradients[gradients.name == "fc.bias"].num_bytes} == {4 * len(PATTERNS)}  # ranks have DATA's classes
    for _, part in alone.groupby("strategy"):
        kinds = part.groupby(["what", "round"]).size()
        assert [*kinds[ALONE]] == [2, 2, 2] and [*kinds[SIDE_BY_SIDE]] == [4, 4, 4]
    assert {*measured.strategy} == {"ddp", "ddp_compressed"} and [*measured.groupby("round").size()] == [4, 4, 4]
    assert not exchange.wrong.any() and {*exchange.path} == {"gloo", "gloo, bf16"}
    assert "median error" in output and "published by others" in output
