"""A run that is asked to stop does so between two windows, on all ranks after the same step.

.venv/bin/python -m pytest tests/benchmarks/test_stopping.py
"""

import os
import signal

import pytest
import torch
from fault_runs import finish, run, start, until_planted
from support import ROOT

from benchmarks.common.config import Config
from benchmarks.common.engine import noted_signals
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner.cause import RunEnd, why_interrupted
from scripts.runner.processes import GRACE_S
from scripts.runner.record import checkpoint_grace_s

pytestmark = pytest.mark.real_interpreter  # signals

TERM = signal.SIGTERM


def test_a_signal_is_noted_in_a_run_with_checkpoints_and_kills_others():
    """Protects both: a checkpoint at the next window, and Ctrl-C of a run that has nothing to save."""
    before = signal.getsignal(TERM)
    with noted_signals(Config(checkpoint_dir="x")) as signals:
        os.kill(os.getpid(), TERM)
        assert signals == [TERM]
    assert signal.getsignal(TERM) == before
    with noted_signals(Config()):
        assert signal.getsignal(TERM) == before


def test_the_grace_is_as_long_as_the_steps_and_the_row_says_what_became_of_it(tmp_path):
    """Protects the reader of `interrupted`: whether there is something to resume from."""
    folder, asked = RunFolder(tmp_path), {"checkpoint_dir": "x", "timeout_s": 60.0, "window_steps": 2}
    assert checkpoint_grace_s({"checkpoint_dir": ""}, folder, 9.0) == 0.0
    assert checkpoint_grace_s(asked, folder, 9.0) == 87.0  # no step is known yet: each may last as long as it runs
    assert checkpoint_grace_s(asked, folder, 9000.0) == 240.0
    folder.write_progress(10, 100, 90.0)
    assert checkpoint_grace_s(asked, folder, 9000.0) == 330.0 > GRACE_S
    ended = RunEnd(-9, 1.0, 0.0, signum=TERM, grace_s=330.0, ending_s=330.2)
    asked_by = "SIGTERM to the launcher"
    assert why_interrupted(ended, folder) == f"{asked_by}; killed after 330.2 s, before another checkpoint was written"
    ended.ending_s = 0.3
    assert why_interrupted(ended, folder).endswith("; ended after 0.3 s, before another checkpoint was written")
    ended.grace_s = 0.0
    assert why_interrupted(ended, folder) == asked_by
    folder.write_cause("interrupted", "SIGTERM stopped the run; a checkpoint of step 3 of epoch 0 was saved", 0)
    assert why_interrupted(ended, folder) == f"{asked_by}; a checkpoint of step 3 of epoch 0 was saved"


ARGS = "--steps 40 --windows 1"
IN_A_WINDOW, BEFORE_WINDOWS = "--warmup-steps 2 --window-steps 3", "--warmup-steps 20 --window-steps 19"


def stop(results, args: str):
    """Two ranks of DDP whose steps last 3 s from the fourth on, ended by SIGTERM in that one. The checkpoint's step."""
    process = start([ROOT / "launchers" / "ddp.sh"], results, "slow step=3", ARGS=args, SLOW_S=3)
    until_planted(results)
    process.send_signal(TERM)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (143, "interrupted")
    state = torch.load(results.parent / "ck" / "ddp-1" / "last.pt", weights_only=True)
    assert f"; a checkpoint of step {state['step']} of epoch 0 was saved" in ended.row["reason"]
    return state["step"]


@pytest.mark.medium
def test_sigterm_in_a_window_leaves_a_checkpoint_at_its_end(tmp_path):
    """Protects what was measured: the window is a whole one, and its row is written."""
    step = stop(tmp_path / "a set", f"{ARGS} {IN_A_WINDOW} --checkpoint-dir {tmp_path / 'ck'}")
    assert step == 5 and len(read_table(tmp_path / "a set", "windows")) == 1


@pytest.mark.medium
def test_sigterm_outside_windows_leaves_a_checkpoint_after_few_steps(tmp_path):
    """Protects a training with long steps, whose scheduler does not wait for as many as a window has."""
    step = stop(tmp_path / "a set", f"{ARGS} {BEFORE_WINDOWS} --checkpoint-dir {tmp_path / 'ck'}")
    assert 4 <= step < 12 and read_table(tmp_path / "a set", "windows").empty


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path):
    """Protects what it is for: the same weights, to the last bit."""
    args = f"{ARGS} {IN_A_WINDOW} --checkpoint-dir {tmp_path / 'ck'}"
    stop(tmp_path / "a set", args)
    assert run("ddp", tmp_path / "a set", ARGS=f"{args} --resume").row["status"] == "ok"
    assert run("ddp", tmp_path / "another", ARGS=args.replace("/ck", "/whole")).row["status"] == "ok"
    ours, theirs = (torch.load(tmp_path / name / "ddp-1/last.pt", weights_only=True) for name in ("ck", "whole"))
    assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
