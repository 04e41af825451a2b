"""make predict-check: turns of real processes, of which only those that exchange nothing feed the prediction.

.venv/bin/python -m pytest tests/probe/test_predict_check.py
"""

import subprocess
import sys

import pandas
import pytest
from support import ROOT, environment

from benchmarks.common.errors import UserError
from scripts.analysis.check import ALONE, SIDE
from scripts.probe.predict_check import Options, main


def test_an_interval_needs_rounds():
    with pytest.raises(UserError, match="3 or more"):
        main(Options(rounds=2))


@pytest.fixture(scope="module")
def sitting(tmp_path_factory, tiny_data, tiny_config):
    """(what it printed, its folder) of one small case of each strategy."""
    out = tmp_path_factory.mktemp("a check")
    config = out / "config.yaml"
    config.write_text(tiny_config.read_text() + f'data: "{tiny_data}"\n')
    words = "--archs resnet18 --image-sizes 32 --rounds 3 --window-steps 2".split()
    command = [sys.executable, "-m", "scripts.probe.predict_check", "--out", str(out), "--config", str(config), *words]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout, out


@pytest.mark.slow
def test_every_kind_has_its_turns(sitting):
    """Protects the fairness of the sitting: each kind once a round, steps of a half batch where nobody is heard."""
    said, out = sitting
    alone, exchange, measured = (pandas.read_csv(out / f"{name}.csv") for name in ("alone", "exchange", "measured"))
    for _, part in alone.groupby("strategy"):
        kinds = part.groupby(["what", "round"]).size()
        assert [*kinds[ALONE]] == [2, 2, 2] and [*kinds[SIDE]] == [4, 4, 4]
    assert {*measured.strategy} == {"ddp", "ddp_compressed"} and [*measured.groupby("round").size()] == [4, 4, 4]
    assert not exchange.wrong.any() and {*exchange.path} == {"gloo", "gloo, bf16"}
    assert "median error" in said and "published by others" in said
