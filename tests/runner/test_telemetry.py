"""The machine beside a run: joules an image, what others used of its GPUs and cores. NVML is a stand-in."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pynvml
import pytest

from scripts.runner import telemetry
from scripts.runner.telemetry import CoreCounters, Sampler, mean_power_w

BEGAN = 1000.0  # on the clock of the windows' ends
GPU = {"device": "cuda", "nodes": 1, "world_size": 1}


def sampler(*rows: tuple[float, str, float | None], num_gpus: int = 2) -> Sampler:
    """A sampler that has read (t_s, device, W)."""
    found = Sampler()
    found.began, found.gpus = BEGAN, [None] * num_gpus
    found.rows = [{"t_s": t_s, "device": device, "power_w": watts} for t_s, device, watts in rows]
    return found


def windows(*times: tuple[float, float], images: int = 100) -> list[tuple[int, float, float]]:
    """From and to moments of t_s's clock, as a run writes them."""
    return [(images, end - start, BEGAN + end) for start, end in times]


@pytest.fixture
def nvml(monkeypatch):
    """nvml(**facts): NVML finds the GPUs 0 and 1, with these answers; it refuses all other questions."""

    def set_facts(**facts):
        def refuse(*_):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

        names = [name for name in dir(pynvml) if name.startswith("nvmlDeviceGet")]
        for name in names:
            monkeypatch.setattr(pynvml, name, refuse)
        uuids = {"GPU-aa": 0, "GPU-bb": 1}
        known = {"Count": lambda: 2, "HandleByIndex": int, "HandleByUUID": lambda uuid: uuids.get(uuid) or refuse()}
        for name, answer in (known | facts).items():
            monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", answer)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return set_facts


# --- energy -----------------------------------------------------------------------------------------------------------


def test_joules_an_image_by_hand():
    # 300 W for 2 s of windows, 200 images: 3 J each; with a second GPU of 70 W 3.7; what is between windows is not.
    both = (("gpu0", 300.0), ("gpu1", 70.0))
    read = [(t, device, watts) for t in (0.5, 1.0, 1.5, 2.0) for device, watts in both]
    read += [(4.0, "gpu0", 900.0), (4.0, "gpu1", 900.0)]
    read += [(t, device, watts) for t in (4.5, 5.0) for device, watts in both]
    trace, timed = sampler(*read), windows((1.0, 2.0), (4.0, 5.0))
    assert trace.energy_j_per_image(timed, GPU) == pytest.approx(3.0)
    assert trace.energy_j_per_image(timed, GPU | {"world_size": 2}) == pytest.approx(3.7)
    assert trace.energy_j_per_image(timed, GPU | {"device": "cpu"}) is None


def test_a_reading_that_is_lost_moves_no_mean():
    # 100 W until 2 s, then 300 W; the reading at 3 s is lost: 1 s of 4 is like the rest
    read = [(1.0, "gpu0", 100.0), (2.0, "gpu0", 100.0), (3.0, "gpu0", None), (4.0, "gpu0", 300.0)]
    assert mean_power_w(sampler(*read).rows, "gpu0", [(0.0, 3.5)]) is None  # too little was read
    assert mean_power_w(sampler(*read).rows, "gpu0", [(0.0, 2.2)]) == pytest.approx(100)
    read += [(5.0, "gpu0", 300.0), (6.0, "gpu0", 300.0)]
    assert mean_power_w(sampler(*read).rows, "gpu0", [(0.0, 6.0)]) == pytest.approx((200 + 900) / 5)


@pytest.mark.parametrize(
    "read, run",
    [
        ([], GPU),
        ([(1.5, "gpu1", 70.0)], GPU),  # gpu0 tells nothing, and its neighbour's power is not its own
        ([(1.5, "gpu0", 300.0)], GPU | {"world_size": 2}),  # half of the devices
        ([(1.5, "gpu0", 300.0)], GPU | {"nodes": 2}),
        ([(0.6, "gpu0", 300.0)], GPU),  # a tenth of the window
    ],
)
def test_too_little_read_is_no_energy(read, run):
    assert sampler(*read).energy_j_per_image(windows((0.5, 1.5)), run) is None


def test_a_gpus_power_is_that_of_its_counter(nvml, monkeypatch):
    """A GPU that is divided (MIG) tells nothing: the sum of all slices is not the run's."""
    monkeypatch.setattr(telemetry, "PERIOD_S", 0.05)
    nvml(
        TotalEnergyConsumption=lambda gpu: round(time.monotonic() * 500_000),  # mJ of 500 W
        MigMode=lambda gpu: [gpu, 0],
    )
    found = Sampler()
    found.start()
    while len(found.rows) < 12:
        time.sleep(0.01)
    rows = found.stop()
    assert [row["power_w"] for row in rows if row["device"] == "gpu0"] == pytest.approx([500.0] * 4, rel=0.05)
    assert {row["power_w"] for row in rows if row["device"] == "gpu1"} == {None}


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, [0, 1]), ("1,0", [1, 0]), ("GPU-bb", [1]), ("GPU-x,1", [None, 1])]
)
def test_gpus_are_found_by_number_and_uuid(nvml, monkeypatch, visible, expected):
    nvml()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert telemetry._nvml_gpus() == expected


# --- others -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper():
    """Starts a process with these variables; returns its number."""
    started = []

    def start(**variables) -> int:
        words = [sys.executable, "-c", "print(flush=True); input()"]
        started.append(subprocess.Popen(words, env=os.environ | variables, stdin=-1, stdout=-1))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.real_interpreter
def test_two_suites_on_one_gpu_see_each_other(nvml, sleeper, tmp_path):
    """The run's own ranks do not count, another suite's do."""
    mine, theirs = (sleeper(RUN_DIR=str(tmp_path / name)) for name in ("mine", "theirs"))
    on_gpu = [mine, 2**22 + 1]  # the second has gone: it is above pid_max
    nvml(ComputeRunningProcesses=lambda gpu: [SimpleNamespace(pid=pid) for pid in on_gpu])
    found = Sampler(tmp_path / "mine")
    numbers = [found._num_others(0)]
    on_gpu.append(theirs)
    numbers.append(found._num_others(0))
    assert numbers == [0, 1]
    found.rows = [{"device": "gpu0", "other_processes": number} for number in (None, *numbers)]
    assert found.most_others(GPU) == 1 and found.most_others(GPU | {"device": "cpu"}) is None
    nvml()
    assert found._num_others(0) is None


def test_shares_of_the_cores_time_by_hand(monkeypatch):
    """What children used is the run's own, steal is no program's, the rest is others'. Where ranks are no children, as
    under Slurm, nobody can tell."""
    counters = iter([(10.0, 1.0, 100.0), (40.0, 6.0, 200.0), (40.0, 6.0, 200.0)])  # busy, stolen, all
    own_s = iter([1.0, 11.0, 11.0])
    monkeypatch.setattr(telemetry, "_core_seconds", lambda: next(counters))
    monkeypatch.setattr(telemetry, "_own_cpu_s", lambda: next(own_s))
    cores = CoreCounters()
    assert cores.shares(rank_cpu_s=8.0) == {"steal_pct": 5, "other_cpu_pct": 20}
    assert cores.shares(rank_cpu_s=12.0)["other_cpu_pct"] is None


@pytest.mark.real_interpreter
def test_a_program_that_is_no_child_of_the_run_is_seen():
    """A child that has not ended is nobody's yet, as a stranger's is."""
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before, cores = telemetry._core_seconds(), CoreCounters()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=-1, stdout=-1, text=True) as stranger:
        stranger.stdout.readline()
        time.sleep(0.05)  # the kernel counts in ticks of 10 ms
        shares, after = cores.shares(rank_cpu_s=0.0), telemetry._core_seconds()
        stranger.communicate("\n")
    assert shares["other_cpu_pct"] / 100 * (after[2] - before[2]) > 0.3
