"""The order in which the loader's windows are timed: a clock that falls within each launch is no cost of loading.

.venv/bin/python -m pytest tests/studies/test_loader_limit.py
"""

import subprocess
import time
from types import SimpleNamespace

import numpy
import psutil
import pytest
import torch
from support import ROOT, start_bench

from benchmarks import single
from benchmarks.common.config import Config
from scripts.studies.loaders import measure_loader_limit
from scripts.studies.loaders.loader_limit import ALONE, BOTH, TRAINING, WINDOW_KINDS
from scripts.studies.loaders.measure_loader_limit import ROUNDS, WARMUP_STEPS, kinds_in_order, measure


@pytest.mark.parametrize("launch", [1, 2])
def test_windows_are_timed_in_the_order_of_their_launch(monkeypatch, launch):
    """Protects the simulation above, which takes this order and equal places for the real ones. A batch takes 1 s and a
    step 10 s of a clock of its own, so that seconds say what was timed. Mutants: the order of the dict of works; launch
    1 for all; no untimed steps before training alone."""
    now_s, read_s = [0.0], []

    def spend(seconds):
        now_s[0] += seconds

    def read_clock():
        read_s.append(now_s[0])
        return now_s[0]

    def batches():
        while True:
            spend(1)
            yield ("images", "labels")

    strategy = SimpleNamespace(
        rank=SimpleNamespace(device=torch.device("cpu")),
        train=None,
        step=lambda images, labels: spend(10),
    )
    monkeypatch.setattr(single, "build", lambda config: strategy)
    monkeypatch.setattr(measure_loader_limit, "endless", lambda train: batches())
    monkeypatch.setattr(measure_loader_limit, "cpu_s", lambda process: now_s[0])
    monkeypatch.setattr(measure_loader_limit, "time", SimpleNamespace(perf_counter=read_clock))
    rows = measure(Config(workers=0, prefetch=1), launch)
    seconds = numpy.subtract(read_s[1::2], read_s[::2]).tolist()
    kinds = [kind for number in range(ROUNDS + 1) for kind in kinds_in_order(launch, number)]
    step_s = [{ALONE: 1, TRAINING: 10, BOTH: 11}[kind] for kind in kinds]
    assert seconds[::2] == [2 * each for each in step_s]  # untimed: as many steps as batches are read ahead
    assert seconds[1::2] == [WARMUP_STEPS * each for each in step_s]
    timed = [*zip(kinds, seconds[1::2], strict=True)][len(WINDOW_KINDS) :]  # after the first round
    assert [(row["what"], row["seconds"]) for row in rows] == timed


@pytest.mark.medium
@pytest.mark.real_interpreter
def test_a_measurement_that_is_ended_leaves_no_process(tiny_config, tiny_data, tmp_path):
    """Protects the cores that the next measurement needs. Mutant: a launch that does not end with its parent."""
    (tmp_path / "a set").mkdir()
    given = {"CONFIG": tiny_config, "DATA": tiny_data, "RESULTS": tmp_path / "a set"}
    ended = start_bench(ROOT, "study loader-limit", **given, stderr=subprocess.DEVNULL)
    launches: list[psutil.Process] = []
    while not launches:
        assert ended.poll() is None
        started = psutil.Process(ended.pid).children(recursive=True)
        launches = [each for each in started if "spawn_main" in " ".join(each.cmdline())]
        time.sleep(0.05)
    ended.terminate()
    ended.wait()
    _, alive = psutil.wait_procs(launches, timeout=20)
    for each in alive:
        each.kill()
    assert not alive
