"""A run that is asked to stop does so after the step in progress, on all ranks after the same one.

.venv/bin/python -m pytest tests/benchmarks/test_stopping.py
"""

import ctypes
import itertools
import math
import os
import signal
import threading
import time

import pytest
import torch
from fault_runs import finish, run, start, until_planted
from support import CPU, ROOT, make_run_folder

from benchmarks.common.config import Config
from benchmarks.common.engine import StopRequest, stop_request
from benchmarks.common.rank import RankContext
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from scripts.runner.processes import GRACE_S
from scripts.runner.run_status import RunEnd, why_interrupted
from scripts.runner.supervisor import checkpoint_grace_s

pytestmark = pytest.mark.real_interpreter  # signals

TERM = signal.SIGTERM


class Rank(threading.Thread):
    """A rank in lockstep with the others: each step is a barrier. It is asked to stop at `point`: 2k is before step k
    is begun, 2k + 1 in it; if it does not get there, since another one waits for it, then a moment after the first."""

    def __init__(self, stop: StopRequest, point: int, barrier: threading.Barrier, first: threading.Event):
        super().__init__()
        self.stop, self.point, self.barrier, self.first = stop, point, barrier, first
        self.lock, self.asked, self.ended_after = threading.Lock(), False, None

    def ask(self) -> None:
        with self.lock:
            if not self.asked:
                self.asked = True
                self.stop.ask(TERM)
                self.first.set()

    def hear(self) -> None:
        self.first.wait()
        time.sleep(0.03)
        self.ask()

    def run(self) -> None:
        threading.Thread(target=self.hear).start()
        for step in range(20):
            if self.point == 2 * step:
                self.ask()
            self.stop.steps_begun += 1
            if self.stop.signum and self.stop.is_due():
                self.ended_after = self.stop.steps_begun - 1
                return
            if self.point == 2 * step + 1:
                self.ask()
            self.barrier.wait(10)


POINTS = [*itertools.product(range(5), repeat=2), *itertools.product((1, 2, 3), repeat=3)]


def test_all_ranks_stop_after_the_same_step(tmp_path):
    """Protects a checkpoint, which all ranks write together: whoever hears of a signal when, before a step or in it,
    all end after the step that the foremost has begun, and none waits in a step that another leaves out.

    Seen to fail with the smallest of the ranks' numbers in place of the largest."""
    for number, points in enumerate(POINTS):
        folder = RunFolder(tmp_path / str(number))
        folder.path.mkdir()
        barrier, first = threading.Barrier(len(points)), threading.Event()
        size = len(points)
        stops = [StopRequest(RankContext(CPU, rank, world_size=size), folder, 10.0) for rank in range(size)]
        ranks = [Rank(stop, point, barrier, first) for stop, point in zip(stops, points, strict=True)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(20)
        ended = [rank.ended_after for rank in ranks]
        assert ended == [folder.decided_stop()] * size, (points, ended)
        assert min(points) // 2 <= ended[0] <= min(points) // 2 + 2, (points, ended)


def test_the_signal_is_set_before_the_steps_are_read(tmp_path):
    """Protects the same: a rank that looked before the signal was set has counted its step before it was read."""
    found = []

    class Watched(StopRequest):
        steps_begun = property(lambda self: found.append(self.signum) or 3, lambda self, steps: None)

    Watched(RankContext(CPU, world_size=2), RunFolder(tmp_path), 1.0).ask(TERM)
    assert found == [TERM]


def test_a_signal_of_one_rank_waits_for_the_next_agreement_on_all(tmp_path):
    """Protects ranks from two opinions: where one has given up waiting, all stop where the sum over them says so, also
    those that hear of the signal later, and see the news of all ranks then."""
    folder = RunFolder(tmp_path)
    one, other = (StopRequest(RankContext(CPU, rank, world_size=2), folder, 0.05) for rank in (0, 1))
    one.steps_begun = other.steps_begun = 4
    one.ask(TERM)
    assert not one.is_due() and one.last_step == math.inf
    other.ask(signal.SIGINT)
    assert folder.posted_stops(2) == [4, 4] and not other.is_due() and other.last_step == math.inf


def test_one_rank_needs_nobody_and_several_without_a_folder_the_sum():
    """Protects scripts that are started by hand."""
    for world_size, is_due in ((1, True), (2, False)):
        stop = StopRequest(RankContext(CPU, world_size=world_size), None, 0.05)
        stop.steps_begun = 3
        stop.ask(TERM)
        assert stop.is_due() is is_due


def test_a_rank_hears_of_a_signal_while_it_is_in_a_library(tmp_path, monkeypatch):
    """Protects the news of a rank that waits in a collective, where Python runs no handler. What was there before is
    there again afterwards. Seen to fail with a handler of Python's that sets the signal."""
    monkeypatch.setenv("RUN_DIR", str(make_run_folder(tmp_path)))
    folder, before = RunFolder(tmp_path), signal.getsignal(TERM)
    library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)
    library.pthread_mutex_init(lock, None)
    library.pthread_mutex_lock(lock)
    posted: list[list[int]] = []

    def look():
        time.sleep(0.1)  # until the other thread is in the library
        os.kill(os.getpid(), TERM)
        for _ in range(6000):  # a minute, if nobody posts
            if folder.posted_stops(2):
                break
            time.sleep(0.01)
        posted.append(folder.posted_stops(2))
        library.pthread_mutex_unlock(lock)

    with stop_request(Config(checkpoint_dir="x"), RankContext(CPU, rank=1, world_size=2)) as stop:
        stop.steps_begun = 7
        looking = threading.Thread(target=look)
        looking.start()
        library.pthread_mutex_lock(lock)  # waits in C, where no handler runs, until `look` has seen the news
        looking.join()
    assert posted == [[7]] and stop.signum == TERM
    assert signal.getsignal(TERM) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_grace_is_as_long_as_the_steps_and_the_row_says_what_became_of_it(tmp_path):
    """Protects the reader of `interrupted`: whether there is something to resume from."""
    folder, asked = RunFolder(tmp_path), {"checkpoint_dir": "x", "timeout_s": 60.0}
    assert checkpoint_grace_s({"checkpoint_dir": ""}, folder, 9.0) == 0.0
    assert checkpoint_grace_s(asked, folder, 9.0) == 78.0  # no step is known yet: each may last as long as it runs
    assert checkpoint_grace_s(asked, folder, 9000.0) == 180.0
    folder.write_progress(10, 100, 90.0)
    assert checkpoint_grace_s(asked, folder, 9000.0) == 240.0 > GRACE_S
    ended = RunEnd(-9, 1.0, 0.0, signum=TERM, grace_s=240.0, ending_s=240.2)
    asked_by = "SIGTERM to the launcher"
    assert why_interrupted(ended, folder) == f"{asked_by}; killed after 240.2 s, before another checkpoint was written"
    ended.ending_s = 0.3
    assert why_interrupted(ended, folder).endswith("; ended after 0.3 s, before another checkpoint was written")
    ended.grace_s = 0.0
    assert why_interrupted(ended, folder) == asked_by
    folder.write_cause("interrupted", "SIGTERM stopped the run; a checkpoint of step 3 of epoch 0 was saved", 0)
    assert why_interrupted(ended, folder) == f"{asked_by}; a checkpoint of step 3 of epoch 0 was saved"


def stopped_in_a_window(results, args: str):
    """Two ranks of DDP whose steps last 3 s from the fourth on, in a window of twenty, ended by SIGTERM in one."""
    process = start([ROOT / "launchers" / "ddp.sh"], results, "slow step=3", ARGS=args, SLOW_S=3)
    until_planted(results)
    process.send_signal(TERM)
    ended = finish(process, results)
    assert (ended.code, ended.row["status"]) == (143, "interrupted")
    state = torch.load(results.parent / "ck" / "ddp-1" / "last.pt", weights_only=True)
    assert state["epoch"] == 0 and 4 <= state["step"] < 12, "not at the end of the window, which lasts a minute"
    assert f"; a checkpoint of step {state['step']} of epoch 0 was saved" in ended.row["reason"]
    assert read_table(results, "windows").empty, "a window that was cut is no window"


ARGS = "--steps 40 --windows 1 --window-steps 20"


@pytest.mark.medium
def test_sigterm_in_a_long_window_leaves_a_checkpoint_after_the_step(tmp_path):
    """Protects a training with long steps, whose scheduler does not wait for the end of a window."""
    stopped_in_a_window(tmp_path / "a set", f"{ARGS} --checkpoint-dir {tmp_path / 'ck'}")


@pytest.mark.slow
def test_a_run_that_was_stopped_in_a_window_ends_as_one_that_was_not(tmp_path):
    """Protects what it is for: the same weights, to the last bit."""
    args = f"{ARGS} --checkpoint-dir {tmp_path / 'ck'}"
    stopped_in_a_window(tmp_path / "a set", args)
    assert run("ddp", tmp_path / "a set", ARGS=f"{args} --resume").row["status"] == "ok"
    assert run("ddp", tmp_path / "another", ARGS=args.replace("/ck", "/whole")).row["status"] == "ok"
    ours, theirs = (torch.load(tmp_path / name / "ddp-1/last.pt", weights_only=True) for name in ("ck", "whole"))
    assert all(torch.equal(ours["model"][name], value) for name, value in theirs["model"].items())
