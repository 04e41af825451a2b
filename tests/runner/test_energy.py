"""Joules an image, from traces of power as telemetry.csv holds them: with holes, two devices, a clock that jitters.

.venv/bin/python -m pytest tests/runner/test_energy.py
"""

from types import SimpleNamespace

import pynvml
import pytest
from support import ROOT

from benchmarks.common.rows import read_table
from scripts.runner import telemetry
from scripts.runner.telemetry import Sampler, mean_power_w

BEGAN = 1000.0  # on the clock of the windows' ends
GPU = {"device": "cuda", "nodes": 1, "world_size": 1}
CPU = GPU | {"device": "cpu"}


def sampler(*rows: tuple[float, str, float | None], num_gpus: int = 2) -> Sampler:
    """A sampler that has read (t_s, device, W)."""
    found = Sampler()
    found.began, found.gpus = BEGAN, [(n, None) for n in range(num_gpus)]
    found.rows = [{"t_s": t_s, "device": device, "power_w": watts} for t_s, device, watts in rows]
    return found


def windows(*times: tuple[float, float], images: int = 100) -> list[tuple[int, float, float]]:
    """Windows from and to moments of t_s's clock, as a run writes them."""
    return [(images, end - start, BEGAN + end) for start, end in times]


def recorded_times() -> list[float]:
    """t_s of a real run's readings: 0.5 s apart, and now and then more."""
    return [float(value) for value in read_table(ROOT / "tests/fixtures/scaling_set", "telemetry").t_s]


def test_joules_an_image_by_hand():
    # 300 W for 2 s of windows, 200 images: 3 J each; with a second GPU of 70 W 3.7; what is between windows is not.
    read = [(t, device, watts) for t in (1.0, 1.5, 2.0) for device, watts in (("gpu0", 300.0), ("gpu1", 70.0))]
    read += [(3.0, "gpu0", 900.0), (3.0, "gpu1", 900.0)]
    read += [(t, device, watts) for t in (4.0, 4.5, 5.0) for device, watts in (("gpu0", 300.0), ("gpu1", 70.0))]
    trace, timed = sampler(*read), windows((1.0, 2.0), (4.0, 5.0))
    assert trace.energy_j_per_image(timed, GPU) == pytest.approx(3.0)
    assert trace.energy_j_per_image(timed, GPU | {"world_size": 2}) == pytest.approx(3.7)


def test_a_hole_in_one_of_two_devices_halves_nothing():
    # gpu1's readings at 1.5 and 2.0 are lost. A sum over both, divided by all moments, once made 133 W of its 200.
    read = [(0.5 * n, "gpu0", 300.0) for n in range(1, 7)]
    read += [(0.5 * n, "gpu1", 200.0) for n in (1, 2, 5, 6)]
    one_image_j = sampler(*read).energy_j_per_image(windows((0.5, 3.0)), GPU | {"world_size": 2})
    assert one_image_j == pytest.approx(500 * 2.5 / 100)


def test_a_hole_does_not_move_the_mean_to_where_readings_are_dense():
    # 100 W until 2.25 s, then 300 W: readings every 0.25 s, and of the second half only two. Readings alone: 133 W.
    read = [(0.25 * n, "gpu0", 100.0) for n in range(10)] + [(2.5, "gpu0", 300.0), (4.25, "gpu0", 300.0)]
    # by hand: readings stand until 2.375 s for 100 W, and from there on for 300
    assert mean_power_w(sampler(*read).rows, "gpu0", [(0.0, 4.75)]) == pytest.approx((100 * 2.375 + 300 * 2.375) / 4.75)


def test_power_that_changes_is_summed_over_recorded_times():
    # 50 W + 20 W/s: the integral is known, the moments are a real run's, and every fifth reading is lost.
    times = recorded_times()
    assert len(times) > 15
    kept = [t for number, t in enumerate(times) if number % 5 != 3]
    trace = sampler(*((t, device, 50 + 20 * t) for t in kept for device in ("gpu0", "gpu1")))
    start, end = times[2] + 0.1, times[-3] - 0.2
    joules = 2 * (50 * (end - start) + 10 * (end**2 - start**2))
    found = trace.energy_j_per_image(windows((start, end)), GPU | {"world_size": 2})
    assert found == pytest.approx(joules / 100, rel=0.01)


def test_a_cpus_reading_is_the_mean_since_the_row_before():
    # Counters: 10 W until 1 s, 50 W until 3 s (the sampler had to wait), then they wrap, then 20 W.
    read = [(1.0, "cpu", 10.0), (3.0, "cpu", 50.0), (3.5, "cpu", None), (4.0, "cpu", 20.0)]
    trace = sampler(*read, num_gpus=0)
    assert trace.energy_j_per_image(windows((0.0, 3.0)), CPU) == pytest.approx((10 + 100) / 100)
    # the wrap leaves 0.5 s out of 2.5 unread: they are taken to be like the rest
    assert trace.energy_j_per_image(windows((1.5, 4.0)), CPU) == pytest.approx((75 + 10) / 2 * 2.5 / 100)


@pytest.mark.parametrize(
    "read, run",
    [
        ([], GPU),
        ([], CPU),
        ([(1.0, "cpu", None)], CPU),
        ([(1.0, "cpu", 50.0)], GPU),  # another device's
        ([(1.0, "gpu1", 70.0)], GPU),  # gpu0 tells nothing, and its neighbour's power is not its own
        ([(1.0, "gpu0", 300.0)], GPU | {"world_size": 2}),  # half of the devices
        ([(1.0, "gpu0", 300.0)], GPU | {"nodes": 2}),
        ([(9.0, "gpu0", 300.0)], GPU),  # after the window
        ([(n / 2, "gpu0", 300.0) for n in range(3)] + [(90.0, "gpu0", 300.0)], GPU | {"long": True}),
    ],
)
def test_too_little_read_is_no_energy(read, run):
    """Protects J/image from a 0, from half of the devices, and from a guess over a hole."""
    timed = windows((0.5, 60.0)) if "long" in run else windows((0.5, 1.5))
    assert sampler(*read).energy_j_per_image(timed, run) is None


def test_two_ranks_that_share_a_gpu_draw_its_power_once():
    trace = sampler((1.0, "gpu0", 300.0), num_gpus=1)
    assert trace.energy_j_per_image(windows((0.5, 1.5)), GPU | {"world_size": 2}) == pytest.approx(3.0)


def test_a_gpus_energy_is_that_of_its_counter(monkeypatch):
    """Protects windows of less than a second on GPUs since Ampere, whose power NVML tells as a mean over a second: here
    it lags, and says 100 W of a window of 500. One reading fails, and leaves two rows without power."""
    readings = [(BEGAN, 0.0), (BEGAN + 0.5, 50.0), (BEGAN + 1.0, 300.0), (BEGAN + 1.5, None), (BEGAN + 2.0, 400.0)]
    readings += [(BEGAN + 2.5, 450.0)]
    left = iter(readings)
    monkeypatch.setattr(telemetry, "_gpu_energy", lambda gpu: next(left))
    monkeypatch.setattr(telemetry, "_gpu_row", lambda gpu: {"power_w": 100.0})
    monkeypatch.setattr(telemetry, "_nvml_gpus", lambda: [(0, "a handle")])
    monkeypatch.setattr(telemetry, "_process_ids", lambda gpu: None)
    found, waits = Sampler(), iter([False] * 5 + [True])
    monkeypatch.setattr(found.stopped, "wait", lambda seconds: next(waits))
    moments = iter([BEGAN + number / 2 for number in range(6)])
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    found.run()
    read = [(row["t_s"], row["power_w"]) for row in found.rows if row["device"] == "gpu0"]
    assert read == [(0.5, 100.0), (1.0, 500.0), (1.5, None), (2.0, None), (2.5, 100.0)]
    assert found.energy_j_per_image(windows((0.6, 0.9)), GPU) == pytest.approx(500 * 0.3 / 100)
    assert found.energy_j_per_image(windows((1.6, 1.9)), GPU) is None


def test_the_counter_is_nvmls_in_millijoules(monkeypatch):
    """Protects the unit, GPUs that do not count, which NVML refuses, and slices of a GPU (MIG): a run uses one, and
    both readings are of all of them together. Mutant: no question about slices."""

    def counted(gpu: str) -> int:
        if gpu in ("old", "a slice"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 2500

    def mig_mode(gpu: str) -> list[int]:
        if gpu in ("old", "a slice"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu == "divided"), 0]

    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", counted)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", mig_mode)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda gpu: 70000)
    found = [telemetry._gpu_energy(gpu)[1] for gpu in ("new", "old", "a slice", "divided")]
    assert found == [2.5, None, None, None]
    for name in ("MemoryInfo", "UtilizationRates", "CurrentClocksThrottleReasons", "Temperature"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{name}", lambda *_: None)
    assert [telemetry._gpu_row(gpu)["power_w"] for gpu in ("new", "old", "divided")] == [70.0, 70.0, None]


def test_a_gpu_without_a_counter_reads_its_power(monkeypatch):
    """Protects GPUs before Volta: what NVML reads stands for the time around it, as ever."""
    monkeypatch.setattr(telemetry, "_gpu_energy", lambda gpu: (BEGAN, None))
    monkeypatch.setattr(telemetry, "_gpu_row", lambda gpu: {"power_w": 70.0})
    monkeypatch.setattr(telemetry, "_nvml_gpus", lambda: [(0, "a handle")])
    monkeypatch.setattr(telemetry, "_process_ids", lambda gpu: None)
    found, waits = Sampler(), iter([False] * 2 + [True])
    monkeypatch.setattr(found.stopped, "wait", lambda seconds: next(waits))
    moments = iter([BEGAN + number / 2 for number in range(3)])
    monkeypatch.setattr(telemetry, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    found.run()
    assert [row["power_w"] for row in found.rows if row["device"] == "gpu0"] == [70.0, 70.0]
    assert found.by_counter == {"cpu"}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-aa11", "GPU-bb22"]),
        ("1,0", ["GPU-bb22", "GPU-aa11"]),
        ("1,", ["GPU-bb22"]),
        ("GPU-b", ["GPU-bb22"]),
        ("GPU-aa11,MIG-7", ["GPU-aa11", "MIG-7"]),
        ("GPU-x", [None]),
        ("GPU-f", ["GPU-ff33"]),
    ],
)
def test_gpus_are_found_by_every_name_that_cuda_takes(monkeypatch, visible, expected):
    """Protects energy and telemetry of a GPU that is named by the beginning of its UUID: NVML wants the whole one, and
    there were no rows. Handles stand here for GPUs, as their UUIDs. Mutants: the UUID as it is typed; a
    GPU that may not be read ends the search."""
    uuids = ["GPU-aa11", "GPU-bb22"] if visible != "GPU-f" else [None, "GPU-ff33"]

    def by_index(index):
        if uuids[index] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return uuids[index]

    def by_uuid(name):
        if name not in [*uuids, "MIG-7"]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return name

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: len(uuids))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", by_index)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda gpu: gpu)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", by_uuid)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert telemetry._nvml_gpus() == [*enumerate(expected)]
