"""What scripts and the engine promise each other: a Strategy, and what a run tells of itself.

.venv/bin/python -m pytest tests/benchmarks/test_engine.py
"""

import dataclasses
import importlib.metadata
import itertools
import json
import os
import shutil
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support import make_run_folder

from benchmarks import model_parallel, single
from benchmarks.common import engine
from benchmarks.common.clock import Clock
from benchmarks.common.columns import TABLES
from benchmarks.common.config import Config
from benchmarks.common.engine import check_windows_fit, count_devices, fit
from benchmarks.common.errors import UserError
from benchmarks.common.exits import exit_at_once
from benchmarks.common.images import resolve_decoder
from benchmarks.common.loader import build_loaders
from benchmarks.common.machine import machine_facts
from benchmarks.common.model import build_model, build_optimizer
from benchmarks.common.rank import Rank
from benchmarks.common.rows import read_table
from benchmarks.common.strategy import STORED_FIELDS, Layout, Strategy

CPU = torch.device("cpu")


@pytest.fixture
def config(tiny_data) -> Config:
    """Three steps and one evaluation."""
    return Config(
        data=str(tiny_data),
        arch="resnet18",
        image_size=32,
        global_batch=8,
        workers=0,
        steps=3,
        warmup_steps=1,
        windows=1,
        window_steps=1,
    )


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    """Where the run finds its folder, as under a launcher."""
    folder = make_run_folder(tmp_path / "a set" / "logs" / "run")
    monkeypatch.setenv("RUN_DIR", str(folder))
    return folder


def summary(run_dir) -> dict:
    return json.loads((run_dir / "summary.json").read_text())


# --- the contract -------------------------------------------------------------------------------------------------


def test_build_trains_nothing_and_its_step_trains(config):
    """Protects probes: build(config) trains nothing, and its step can be timed elsewhere."""
    strategy = single.build(config)
    before = [parameter.clone() for parameter in strategy.model.parameters()]
    strategy.step(*next(iter(strategy.train)))
    after = [*strategy.model.parameters()]
    assert not any(torch.equal(*pair) for pair in zip(before[:1], after[:1], strict=True))


@pytest.mark.parametrize("period", [0, 4])
def test_a_window_of_ranks_that_are_apart_ends_when_all_have_done_its_steps(config, period):
    """Protects local_sgd's throughput: its ranks wait for each other once a period, and a window of rank 0's own time
    left out what it would have waited for slower ranks. Mutants: no wait; a wait after the last step was timed; one in
    every step; one in strategies whose steps wait by themselves."""
    events = []

    class Noting(Clock):
        def tick(self):
            events.append("step")
            return super().tick()

    def all_reduce(tensor):
        events.append("all-reduce")
        return tensor

    strategy = single.build(dataclasses.replace(config, steps=4, window_steps=2))
    changes = {"layout": Layout(period=period), "all_reduce": all_reduce}
    fit(dataclasses.replace(strategy, **changes), Noting([CPU]))
    last = len(events) - events[::-1].index("step")
    assert events[last - (3 if period else 2) : last] == ["step", *["all-reduce"] * (period > 0), "step"]


def test_nothing_is_written_between_two_windows(config, run_dir, monkeypatch):
    """Protects a window from starting with a full queue: while all rows so far were written anew and brought to the
    disk, the loader's workers went on."""
    events = []

    class Noting(Clock):
        def start(self):
            events.append("start")
            super().start()

    for name in ("fsync", "replace"):
        function = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, call=function: events.append("disk") or call(*args))
    fit(single.build(dataclasses.replace(config, steps=8, windows=3, window_steps=2)), Noting([CPU]))
    first, last = events.index("start"), len(events) - events[::-1].index("start")
    assert events.count("start") == 3 and events[first:last] == ["start"] * 3
    assert "disk" in events[last:] and len(read_table(run_dir.parent.parent, "windows")) == 3


def test_the_windows_before_a_failure_are_rows(config, run_dir):
    """Protects what was measured: rows wait in memory until the end of an epoch, or of the run."""
    strategy = single.build(dataclasses.replace(config, steps=8, windows=3, window_steps=2))
    num_steps = itertools.count()

    def step(images, target):
        if next(num_steps) == 6:
            raise ArithmeticError("planted")
        return strategy.step(images, target)

    with pytest.raises(ArithmeticError):
        fit(dataclasses.replace(strategy, step=step))
    assert len(read_table(run_dir.parent.parent, "windows")) == 2


def test_a_window_that_never_fits_is_refused():
    """Protects the row: a run without a window has no throughput. The bounds are exact."""
    fits = Config(epochs=2, warmup_steps=12, window_steps=8)
    check_windows_fit(fits, 10)  # steps 2 to 9 of the second epoch
    for change in ({"warmup_steps": 13}, {"window_steps": 9}, {"epochs": 1}):
        with pytest.raises(UserError, match=r"no timed window fits: .* of 10 steps"):
            check_windows_fit(dataclasses.replace(fits, **change), 10)
    with pytest.raises(UserError, match="no timed window fits"):
        check_windows_fit(Config(warmup_steps=0, window_steps=10), 10)  # an epoch's first step is in no window


def test_no_window_holds_a_step_of_the_warm_up(config, run_dir):
    """Protects throughput from the first steps, which find algorithms and memory. Mutant: `_window_due` that takes any
    step for warm; a warm-up of one step hides it, since no window begins in an epoch's first step."""
    fit(single.build(dataclasses.replace(config, steps=6, warmup_steps=3, window_steps=2)))
    assert list(read_table(run_dir.parents[1], "steps").step) == [3, 4]


# --- what a run met -----------------------------------------------------------------------------------------------


def test_a_run_records_its_resolved_settings(config, run_dir):
    """Protects the second half of a run's settings, and that the row agrees with it where both have a name."""
    fit(single.build(config))
    reported = summary(run_dir)
    met, row = reported["met"], reported["row"]
    for package in ("torch", "torchvision", "pillow"):
        assert met[package].split("+")[0] == importlib.metadata.version(package)
    assert row["decoder"] == met["decoder"] == resolve_decoder(config)
    library = {"nvimgcodec": "nvidia-nvimgcodec-cu13"}.get(row["decoder"], row["decoder"])
    assert importlib.metadata.version(library).startswith(met["decoder_version"]) and met["decoder_version"]
    assert met.keys() >= {"device_name", "nodes", "threads_per_rank", "python", "cuda", "cudnn"}
    assert (met["device"], met["backend"], met["world_size"], met["precision"]) == ("cpu", "none", 1, "fp32")
    assert met.items() >= {name: getattr(Layout(), name) for name in STORED_FIELDS}.items()
    # what of the machine separates runs; mutant: Record.finish without one of these
    kernels = {"cpu_capability": torch.backends.cpu.get_cpu_capability(), "gpu_driver": "", "nccl": ""}
    assert met.items() >= (machine_facts() | kernels).items()
    assert {name: row[name] for name in TABLES["runs"] if name in met}.items() <= met.items()
    assert None not in met.values() and "images_per_s" not in met
    assert row["parallel"] is None and "parallel" not in met  # the baseline's


@pytest.mark.medium
def test_an_auto_says_what_it_came_to(config, run_dir):
    """Protects the identity: `--cut auto` of another arch, or on another machine, is another cut."""
    fit(model_parallel.build(dataclasses.replace(config, split_size=3)))
    reported = summary(run_dir)
    assert config.cut == "auto" and 0 < reported["met"]["cut"] < 8  # ResNet-18 has 8 blocks
    assert (reported["met"]["num_stages"], reported["met"]["num_microbatches"]) == (2, 3)  # of 3, 3 and 2 images
    assert (reported["row"]["parallel"], reported["row"]["world_size"]) == (False, 1)


def test_sync_norm_makes_one_shard_of_the_batch(config, run_dir):
    """Protects the proof's reference for SyncBatchNorm, whose statistics are of the whole batch on any ranks."""
    as_sync = dataclasses.replace(config, norm="sync")
    fit(dataclasses.replace(single.build(config), config=as_sync, layout=Layout(4)))
    assert summary(run_dir)["met"]["num_shards"] == 1


def test_what_counts_as_divided(monkeypatch):
    """Protects `parallel`: ranks on CPUs, GPUs by who they are, and never GPUs by their number on a node."""
    uuids = {0: "GPU-a", 1: "GPU-b", 2: "GPU-a"}  # numbers 0 and 2: as two nodes of a Slurm on one machine see it
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=uuids[device.index or 0])
    )
    gpus = [torch.device("cuda", number) for number in uuids]
    monkeypatch.setattr(engine, "gather", lambda values, rank, all_reduce: torch.tensor([values]))
    for devices, num_devices in ((gpus, 2), (gpus[:2], 2), (gpus[::2], 1), ([CPU], 1)):
        assert count_devices(SimpleNamespace(rank=Rank(devices=tuple(devices)), all_reduce=None)) == num_devices


# --- two ranks ----------------------------------------------------------------------------------------------------


def two_ranks(rank: int, config: Config, run_dir) -> None:
    """A strategy whose state is in two halves: rank 0 holds the weights, rank 1 the optimizer's state."""
    os.environ["RUN_DIR"] = str(run_dir)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{run_dir}/rendezvous", timedelta(seconds=120), rank=rank, world_size=2)
    worker = Rank(rank, rank, 2, 2)
    train, val = build_loaders(config, worker)
    num_classes = train.num_classes
    model = build_model(config, num_classes)
    optimizer, calls = build_optimizer(config, model), []

    def step(images, target):
        return torch.zeros(()), torch.zeros(len(target), num_classes)

    def state():
        calls.append("state")
        halves = [None, None]
        dist.all_gather_object(halves, model.state_dict() if rank == 0 else optimizer.state_dict())
        return {"model": halves[0], "optimizer": halves[1], "mine": torch.tensor([41.0 + rank])}

    def load(saved):
        calls.append(f"load {saved['mine'].item():.0f}")
        model.load_state_dict(saved["model"])

    strategy = Strategy(
        config,
        worker,
        model=model,
        optimizer=optimizer,
        train=train,
        val=val,
        criterion=torch.nn.CrossEntropyLoss(),
        step=step,
        layout=Layout(2),
        save_state=state,
        load_state=load,
    )
    fit(strategy)
    (run_dir / f"calls-{rank}").write_text(" ".join(calls))
    dist.destroy_process_group()
    exit_at_once(0)


@pytest.mark.medium
def test_state_and_load_are_called_on_every_rank(config, run_dir, tmp_path):
    """Protects sharded states, which become whole by a collective: with rank 0 alone in it, this would hang.

    And what a script puts into its state comes back to it.
    """
    checkpoints = tmp_path / "checkpoints"
    config = dataclasses.replace(config, checkpoint_dir=str(checkpoints), epochs=1)
    mp.spawn(two_ranks, (config, run_dir), nprocs=2, daemon=True)
    calls = [(run_dir / f"calls-{rank}").read_text() for rank in (0, 1)]
    assert calls[0] == calls[1] and calls[0].split().count("state") >= 2  # last.pt and best.pt
    assert summary(run_dir)["row"]["parallel"] is True and summary(run_dir)["met"]["num_shards"] == 2
    (run_dir / "rendezvous").unlink(missing_ok=True)
    mp.spawn(two_ranks, (dataclasses.replace(config, epochs=2, resume=True), run_dir), nprocs=2, daemon=True)
    calls = [(run_dir / f"calls-{rank}").read_text() for rank in (0, 1)]
    assert calls[0] == calls[1] and calls[0].startswith("load 41 state")
    shutil.rmtree(checkpoints)


def test_an_optimizer_state_of_another_strategy_is_refused_with_the_way_out(config, tmp_path):
    """Protects the reader of the message from torch's words about parameter groups."""
    config = dataclasses.replace(config, checkpoint_dir=str(tmp_path / "checkpoints"))
    fit(single.build(config))
    path = tmp_path / "checkpoints" / "last.pt"
    saved = torch.load(path, weights_only=True)
    saved["optimizer"]["param_groups"][0]["params"].pop()
    torch.save(saved, path)
    with pytest.raises(UserError, match=r"does not fit .*; resume it with the strategy that wrote it, or start"):
        fit(single.build(dataclasses.replace(config, resume=True)))
    shutil.rmtree(tmp_path / "checkpoints")
