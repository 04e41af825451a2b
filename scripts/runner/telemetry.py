"""Samples the machine beside a run, every PERIOD_S: GPUs through NVML, the rest through psutil; for telemetry.csv."""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pynvml

from benchmarks.common.machine import visible_devices
from benchmarks.common.run_folder import RUN_DIR_VARIABLE

PERIOD_S = 0.5
MIN_READ_FRACTION = 0.8  # of the windows' time


class Sampler(threading.Thread):
    """A thread that collects telemetry rows: per cent, 10^6 bytes (a second), W. power_w is the mean since the row
    before, by NVML's counter of energy."""

    def __init__(self, run_dir: Path | None = None):
        super().__init__(daemon=True)
        self.rows: list[dict] = []
        self.stopped = threading.Event()
        self.gpus = _nvml_gpus()
        self.run_dir = str(run_dir)
        self.foreign: dict[int, bool] = {}  # whether a process on a GPU is of another run

    def run(self) -> None:
        self.began = time.monotonic()
        psutil.cpu_percent()  # the first call has nothing to compare with
        energy = [(_energy_j(gpu), time.monotonic()) for gpu in self.gpus]
        while not self.stopped.wait(PERIOD_S):
            self.rows.append(
                {
                    "t_s": time.monotonic() - self.began,
                    "device": "cpu",
                    "util_pct": psutil.cpu_percent(),
                    "memory_used_mb": psutil.virtual_memory().used / 1e6,
                }
            )
            for index, gpu in enumerate(self.gpus):
                if gpu is not None:
                    earlier, energy[index] = energy[index], (_energy_j(gpu), time.monotonic())
                    own = {"t_s": energy[index][1] - self.began, "device": f"gpu{index}"}
                    own |= {"power_w": _mean_w(earlier, energy[index]), "other_processes": self._num_others(gpu)}
                    self.rows.append(own | _gpu_row(gpu))

    def _num_others(self, gpu: Any) -> int | None:
        """How many processes on the GPU are not of this run; None where NVML does not tell."""
        processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu)
        pids = [process.pid for process in processes or ()]
        self.foreign |= {pid: _is_foreign(pid, self.run_dir) for pid in pids if pid not in self.foreign}
        return None if processes is None else sum(self.foreign[pid] for pid in pids)

    def stop(self) -> list[dict]:
        self.stopped.set()
        self.join()
        return self.rows

    def _gpus_of(self, run: dict) -> list[str]:
        return [f"gpu{index}" for index in range(len(self.gpus))][: run["world_size"]]

    def most_others(self, run: dict) -> int | None:
        """The most processes of others at a time on one of the run's GPUs; None where unknown. run: its row."""
        if run["device"] != "cuda" or run["nodes"] > 1:
            return None
        devices = self._gpus_of(run)
        counts = [row["other_processes"] for row in self.rows if row["device"] in devices]
        return max((number for number in counts if number is not None), default=None)

    def energy_j_per_image(self, windows: list[tuple[int, float, float]], run: dict) -> float | None:
        """J that the run's GPUs drew in its windows: (images, seconds, moment of the end). None where too little was
        read, or not of all nodes. run: its row."""
        if run["device"] != "cuda" or run["nodes"] > 1:
            return None
        times = [(end - seconds - self.began, end - self.began) for _, seconds, end in windows]
        watts = [mean_power_w(self.rows, device, times) for device in self._gpus_of(run)]
        known = [power_w for power_w in watts if power_w is not None]
        if not known or len(known) < len(watts):
            return None
        return sum(known) * sum(seconds for _, seconds, _ in windows) / sum(images for images, _, _ in windows)


def mean_power_w(rows: Sequence[dict], device: str, times: Sequence[tuple[float, float]]) -> float | None:
    """W within times (from, to), each row by its share of them; None where too little was read."""
    joules = read_s = since = 0.0
    for row in rows:
        if row["device"] == device:
            if row.get("power_w") is not None:
                inside_s = sum(max(0.0, min(row["t_s"], end) - max(since, start)) for start, end in times)
                joules, read_s = joules + row["power_w"] * inside_s, read_s + inside_s
            since = row["t_s"]
    total_s = sum(end - start for start, end in times)
    return joules / read_s if read_s and read_s >= MIN_READ_FRACTION * total_s else None


def _mean_w(earlier: tuple[float | None, float], later: tuple[float | None, float]) -> float | None:
    """Between two readings of (joules, moment); None where one failed, or the counter began anew."""
    (before_j, since_s), (after_j, until_s) = earlier, later
    if before_j is None or after_j is None or after_j < before_j or until_s <= since_s:
        return None
    return (after_j - before_j) / (until_s - since_s)


# --- GPUs -------------------------------------------------------------------------------------------------------------


def _nvml_gpus() -> list[Any]:
    """Handles of the visible GPUs; None for one that NVML cannot find."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver
        return []
    names = visible_devices()
    names = [str(index) for index in range(pynvml.nvmlDeviceGetCount())] if names is None else names
    by_number, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
    return [_ask(by_number, int(name)) if name.isdecimal() else _ask(by_uuid, name) for name in names]


def _ask(query: Callable[..., Any], *about: Any) -> Any:
    """None where NVML does not tell, or there is no such GPU."""
    with contextlib.suppress(pynvml.NVMLError):
        return query(*about) if None not in about else None
    return None


def _is_foreign(pid: int, run_dir: str) -> bool:
    try:
        return psutil.Process(pid).environ().get(RUN_DIR_VARIABLE) != run_dir
    except psutil.AccessDenied:  # another user's
        return True
    except psutil.Error:
        return False


def _energy_j(gpu: Any) -> float | None:
    """J since the driver was loaded; None of a GPU that is divided (MIG), where NVML reports the sum of all slices."""
    divided = _ask(pynvml.nvmlDeviceGetMigMode, gpu)
    used_mj = None if divided and divided[0] else _ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, gpu)
    return None if used_mj is None else used_mj / 1000


def _gpu_row(gpu: Any) -> dict[str, Any]:
    memory, use = _ask(pynvml.nvmlDeviceGetMemoryInfo, gpu), _ask(pynvml.nvmlDeviceGetUtilizationRates, gpu)
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, gpu) or 0
    thermal = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    capped = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    return {
        "util_pct": use.gpu if use else None,
        "memory_used_mb": memory.used / 1e6 if memory else None,
        "clock_mhz": _ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        "temperature_c": _ask(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU),
        "throttle": "thermal" if reasons & thermal else "power" if reasons & capped else "",
    }


# --- cores ------------------------------------------------------------------------------------------------------------


class CoreCounters:
    """Of the usable cores, read before and after a run."""

    def __init__(self) -> None:
        self.before, self.own_before_s = _core_seconds(), _own_cpu_s()

    def shares(self, rank_cpu_s: float | None) -> dict[str, float | None]:
        """Columns of runs.csv, per cent of the cores' time. rank_cpu_s: of a rank, as it reports it. Under Slurm, where
        a rank is no child, other_cpu_pct is unknown."""
        busy_s, steal_s, all_s = (after - before for after, before in zip(_core_seconds(), self.before, strict=True))
        own_s = _own_cpu_s() - self.own_before_s
        is_child = rank_cpu_s is not None and own_s >= rank_cpu_s
        return {
            "steal_pct": 100 * steal_s / all_s if all_s else None,
            "other_cpu_pct": 100 * max(0.0, busy_s - own_s) / all_s if all_s and is_child else None,
        }


def _core_seconds() -> tuple[float, float, float]:
    """Seconds of the cores: busy, given to another guest, and all (proc_stat(5))."""
    usable = os.sched_getaffinity(0)
    cores = [times for number, times in enumerate(psutil.cpu_times(percpu=True)) if number in usable]
    busy_s = sum(core.user + core.nice + core.system + core.irq + core.softirq for core in cores)
    steal_s = sum(core.steal for core in cores)
    return busy_s, steal_s, busy_s + steal_s + sum(core.idle + core.iowait for core in cores)


def _own_cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
