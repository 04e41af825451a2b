"""What else used the cores and the GPUs of a run: counted by real processes, and by counters whose shares are known.

.venv/bin/python -m pytest tests/runner/test_co_tenants.py
"""

import os
import subprocess
import sys
import time

import pytest

from scripts.runner import co_tenants, telemetry
from scripts.runner.co_tenants import CoreCounters, CoTenants
from scripts.runner.telemetry import Sampler

pytestmark = pytest.mark.real_interpreter  # the CPU time of children

BURN = "import time\nwhile time.process_time() < 1: pass\nprint(time.process_time(), flush=True)\n"
GPU = {"device": "cuda", "nodes": 1, "world_size": 1}


def test_shares_of_the_cores_time_by_hand(monkeypatch):
    """Protects the cautions: what a child used is the run's own, steal is no program's, the rest is others'."""
    counters = iter([(10.0, 1.0, 100.0), (40.0, 6.0, 200.0)])  # busy, stolen and all: 30, 5 and 100 s
    monkeypatch.setattr(co_tenants, "_core_seconds", lambda: next(counters))
    cores = CoreCounters()
    burnt_s = float(subprocess.run([sys.executable, "-c", BURN], capture_output=True, check=True).stdout)
    shares = cores.shares(rank_cpu_s=1.0)
    assert shares["steal_pct"] == 5
    assert 30 - burnt_s - 10 < shares["other_cpu_pct"] <= 30 - 1  # its start and this process used some, too


def test_a_program_that_is_no_child_of_the_run_is_seen():
    """Protects the reading itself, from the kernel: a child that has not ended is nobody's yet, as a stranger's is."""
    before = co_tenants._core_seconds()
    cores = CoreCounters()
    with subprocess.Popen([sys.executable, "-c", BURN + "input()"], stdin=-1, stdout=-1, text=True) as stranger:
        stranger.stdout.readline()
        time.sleep(0.05)  # the kernel counts in ticks of 10 ms
        shares, after = cores.shares(rank_cpu_s=0.0), co_tenants._core_seconds()
        stranger.communicate("\n")
    assert shares["other_cpu_pct"] / 100 * (after[2] - before[2]) > 0.7


def test_where_the_ranks_are_no_children_nobody_can_tell():
    """Protects Slurm's rows from calling the run's own ranks others'."""
    cores = CoreCounters()
    assert cores.shares(rank_cpu_s=1e6)["other_cpu_pct"] is None
    assert cores.shares(rank_cpu_s=None)["other_cpu_pct"] is None


@pytest.fixture
def sleeper():
    """Starts a process with these variables; returns its number."""
    started = []

    def start(**variables) -> int:
        env = os.environ | variables
        started.append(
            subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], env=env, stdin=-1, stdout=-1)
        )
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_two_suites_on_one_gpu_see_each_other(sleeper, tmp_path, monkeypatch):
    """Protects a reader from half a GPU's speed: the run's own ranks do not count, another suite's do."""
    mine, theirs = sleeper(RUN_DIR=str(tmp_path / "mine")), sleeper(RUN_DIR=str(tmp_path / "theirs"))
    early, gone = sleeper(), 2**22 + 1  # above pid_max
    on_gpu = [[early], [mine], [mine, gone], [mine, theirs, early], [mine]]
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.01)
    monkeypatch.setattr(telemetry, "_nvml_gpus", lambda: [(0, "a GPU"), (1, "another")])
    monkeypatch.setattr(telemetry, "_gpu_row", lambda gpu: {})
    monkeypatch.setattr(
        telemetry,
        "_process_ids",
        lambda gpu: (on_gpu.pop(0) if len(on_gpu) > 1 else on_gpu[0]) if gpu == "a GPU" else None,
    )
    sampler = Sampler(tmp_path / "mine")
    sampler.start()
    while len([row for row in sampler.rows if row["device"] == "gpu0"]) < 4:
        time.sleep(0.01)
    rows = sampler.stop()
    assert [row["other_processes"] for row in rows if row["device"] == "gpu0"][:4] == [0, 0, 2, 0]
    assert sampler.most_others(GPU) == 2 and sampler.most_others(GPU | {"device": "cpu"}) is None
    sampler.gpus.reverse()  # as if the run had the other one, which does not tell
    assert sampler.most_others(GPU) is None


def test_a_stranger_stays_one_and_a_rank_of_ours_does_not_become_one(sleeper, tmp_path):
    mine, theirs = sleeper(RUN_DIR=str(tmp_path)), sleeper(RUN_DIR="")
    known = CoTenants(tmp_path)
    assert [known.count([mine]), known.count([mine, theirs]), known.count([theirs])] == [0, 1, 1]
    assert CoTenants(tmp_path, there_before=[theirs]).count([theirs]) == 1
