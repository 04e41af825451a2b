"""The clock, the timed windows, and what a run tells of itself."""

import dataclasses
import itertools
import os
import signal
from types import SimpleNamespace

import pytest
import torch
from fake_gpus import see_gpus
from support import make_run_folder

from benchmarks import single
from benchmarks.common import clock as clock_module
from benchmarks.common.clock import Clock
from benchmarks.common.config import Config
from benchmarks.common.engine import agree, check_windows_fit, fit
from benchmarks.common.errors import Diverged, Stopped, UserError
from benchmarks.common.rank import Rank
from benchmarks.common.rows import read_table
from benchmarks.common.run_folder import RunFolder
from benchmarks.common.strategy import Layout

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("small_model")


@pytest.fixture
def config(tiny_data) -> Config:
    small = {"arch": "resnet18", "image_size": 32, "global_batch": 8, "workers": 0, "steps": 3}
    return Config(data=str(tiny_data), warmup_steps=1, windows=1, window_steps=1, **small)


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    folder = make_run_folder(tmp_path / "a set" / "logs" / "run")
    monkeypatch.setenv("RUN_DIR", str(folder))
    return folder


# --- the clock ------------------------------------------------------------------------------------------------------


def test_a_window_on_a_gpu_begins_and_ends_when_the_gpu_has_nothing_left_to_do(monkeypatch):
    see_gpus(monkeypatch, 1)
    happened = []
    monkeypatch.setattr(clock_module, "synchronize", lambda device: happened.append("wait"))
    read = SimpleNamespace(perf_counter=lambda: happened.append("read") or float(len(happened)))
    monkeypatch.setattr(clock_module, "time", read)
    window = Clock([torch.device("cuda", 0)])
    window.start()
    window.tick()
    seconds, step_ms = window.stop()
    assert happened == ["wait", "read", "wait", "read"] and seconds == 2.0
    assert step_ms == [1.0]  # of fake_gpus.Moment


# --- timed windows --------------------------------------------------------------------------------------------------


class Noting(Clock):
    def __init__(self, events: list[str]):
        super().__init__([CPU])
        self.events = events

    def start(self):
        self.events.append("start")
        super().start()

    def tick(self):
        self.events.append("step")
        super().tick()


def test_windows_hold_neither_the_warm_up_nor_an_epochs_first_step(config, run_dir):
    """And throughput is the images of all windows over their seconds."""
    fit(single.build(dataclasses.replace(config, steps=6, epochs=2, warmup_steps=3, windows=3, window_steps=2)))
    assert [*read_table(run_dir.parents[1], "steps").step] == [3, 4, 7, 8, 9, 10]
    windows, row = read_table(run_dir.parents[1], "windows"), RunFolder(run_dir).summary()["row"]
    assert [*windows.images] == [16, 16, 16]
    assert row["images_per_s"] == pytest.approx(48 / windows.seconds.sum())


def test_each_step_has_a_learning_rate_of_its_own(config):
    """A warm-up that climbs once an epoch would leave the weights of the first one as they are."""
    config = dataclasses.replace(config, steps=4, epochs=2, lr=0.8, lr_batch=8, lr_warmup_epochs=1)
    strategy, rates = single.build(config), []

    def step(images, target):
        rates.append(strategy.optimizer.param_groups[0]["lr"])
        return None, None

    fit(dataclasses.replace(strategy, step=step))
    assert rates == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8])


def test_a_window_of_local_sgd_ends_when_all_ranks_have_done_its_steps(config):
    """Its ranks wait for each other only once a period."""
    events = []
    strategy = single.build(dataclasses.replace(config, steps=4, window_steps=2))
    changes = {"layout": Layout(period=4), "all_reduce": lambda tensor: events.append("all-reduce") or tensor}
    fit(dataclasses.replace(strategy, **changes), Noting(events))
    last = len(events) - events[::-1].index("step")
    assert events[last - 3 : last] == ["step", "all-reduce", "step"]


def test_nothing_is_written_between_two_windows(config, run_dir, monkeypatch):
    """Or the loader's workers would fill their queue meanwhile."""
    events = []
    for name in ("fsync", "replace"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, call=function: events.append("disk") or call(*args))
    fit(single.build(dataclasses.replace(config, steps=8, windows=3, window_steps=2)), Noting(events))
    assert events.count("start") == 3
    last_start = len(events) - 1 - events[::-1].index("start")
    assert "disk" not in events[events.index("start") : last_start] and "disk" in events[last_start:]


def test_a_window_that_never_fits_is_refused():
    fits = Config(epochs=2, warmup_steps=12, window_steps=8)
    check_windows_fit(fits, 10)  # steps 2 to 9 of the second epoch
    for change in ({"warmup_steps": 13}, {"window_steps": 9}, {"warmup_steps": 0, "window_steps": 10}):
        with pytest.raises(UserError, match="no timed window fits"):
            check_windows_fit(dataclasses.replace(fits, **change), 10)


# --- stopping -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup_steps, stopped_after", [(2, 6), (20, None)], ids=["in a window", "outside windows"])
def test_a_signal_leaves_a_checkpoint_and_the_open_window(config, run_dir, tmp_path, warmup_steps, stopped_after):
    """At the end of the window, which is a row; outside windows after few steps."""
    checkpoints = tmp_path / "ck"
    changes = {"warmup_steps": warmup_steps, "window_steps": 4, "checkpoint_dir": str(checkpoints)}
    strategy = single.build(dataclasses.replace(config, steps=30, **changes))
    num_steps = itertools.count()

    def step(images, target):
        if next(num_steps) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return strategy.step(images, target)

    with pytest.raises(Stopped):
        fit(dataclasses.replace(strategy, step=step))
    saved_step = torch.load(checkpoints / "last.pt", weights_only=True)["step"]
    assert saved_step == stopped_after or (stopped_after is None and 4 <= saved_step < 12)
    assert len(read_table(run_dir.parents[1], "windows")) == (stopped_after is not None)


def test_all_ranks_hear_of_one_ranks_signal_and_of_one_ranks_nan():
    def strategy(of_the_other_rank: list[float]):
        return SimpleNamespace(rank=Rank(world_size=2), all_reduce=lambda mine: mine + torch.tensor(of_the_other_rank))

    losses = [torch.tensor(1.0), torch.tensor(2.0)]
    assert agree(strategy([0, 0, 1, 0.3]), losses, 10, [], 0.1) == (signal.SIGTERM, pytest.approx(0.2))
    for ours, other in ((losses, [0, 1, 0, 0.3]), ([losses[0], torch.tensor(float("nan"))], [0, 0, 0, 0.3])):
        with pytest.raises(Diverged, match="step 9"):
            agree(strategy(other), ours, 10, [], 0.1)
