"""Samples the machine beside a run, every PERIOD_S: GPUs through NVML, the rest through psutil; for telemetry.csv."""

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from benchmarks.common.machine import visible_devices
from scripts.runner.co_tenants import CoTenants

PERIOD_S = 0.5
SAMPLES_PER_CLOCK = 4  # samples: to read the clock interrupts every core
CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")
RAPL = Path("/sys/class/powercap")
MAX_READING_AGE_S = 3 * PERIOD_S
"""How far from its moment a GPU's reading stands for its power."""
MIN_READ_FRACTION = 0.8  # of the windows' time: an energy of less is a guess


class Sampler(threading.Thread):
    """A thread that collects telemetry rows from `start()` until `stop()`; t_s counts from the start.

    Utilisation in per cent, memory in 10^6 bytes, power in W, network in 10^6 bytes a second without loopback. GPUs
    are the visible ones. A CPU's power is that of its packages, where RAPL may be read.

    by_counter: devices with a counter of energy, whose power is the mean since the row before. A GPU without one,
    before Volta, has what NVML reads.
    """

    def __init__(self, run_dir: Path | None = None):
        super().__init__(daemon=True)
        self.rows: list[dict] = []
        self.stopped = threading.Event()
        self.gpus = _nvml_gpus()
        self.by_counter = {"cpu"}
        self.co_tenants = CoTenants(
            run_dir, itertools.chain(*(_process_ids(gpu) or [] for _, gpu in self.gpus if gpu is not None))
        )

    def run(self) -> None:
        self.began = time.monotonic()
        psutil.cpu_percent()  # the first call has nothing to compare with
        before, joules, then = _network_bytes(), _rapl_j(), self.began
        found = [(n, gpu) for n, gpu in self.gpus if gpu is not None]
        counted = {n: _gpu_energy(gpu) for n, gpu in found}
        self.by_counter |= {f"gpu{n}" for n, (_, used_j) in counted.items() if used_j is not None}
        for number in itertools.count():
            if self.stopped.wait(PERIOD_S):
                break
            now, network, used_j = time.monotonic(), _network_bytes(), _rapl_j()
            self.rows.append(
                {
                    "t_s": now - self.began,
                    "device": "cpu",
                    "util_pct": psutil.cpu_percent(),
                    "memory_used_mb": psutil.virtual_memory().used / 1e6,
                    "network_mb_per_s": (network - before) / 1e6 / (now - then),
                    "clock_mhz": _clock_mhz() if number % SAMPLES_PER_CLOCK == 0 else None,
                    "power_w": (used_j - joules) / (now - then) if used_j >= joules > 0 else None,  # counters wrap
                }
            )
            before, joules, then = network, used_j, now
            for n, gpu in found:
                pids = _process_ids(gpu)
                others = {"other_processes": None if pids is None else self.co_tenants.count(pids)}
                row = {"t_s": now - self.began, "device": f"gpu{n}", **others, **_gpu_row(gpu)}
                if f"gpu{n}" in self.by_counter:
                    earlier, counted[n] = counted[n], _gpu_energy(gpu)
                    row |= {"t_s": counted[n][0] - self.began, "power_w": _mean_between(earlier, counted[n])}
                self.rows.append(row)

    def stop(self) -> list[dict]:
        """End the thread and return its rows."""
        self.stopped.set()
        self.join()
        return self.rows

    def most_others(self, run: dict) -> int | None:
        """The most processes of others at a time on one of the run's GPUs; None where nobody could tell."""
        if run["device"] != "cuda" or run["nodes"] > 1:
            return None
        devices = {f"gpu{n}" for n, _ in self.gpus[: run["world_size"]]}
        counts = [row["other_processes"] for row in self.rows if row["device"] in devices]
        return max((number for number in counts if number is not None), default=None)

    def energy_j_per_image(self, windows: list[tuple[int, float, float]], run: dict) -> float | None:
        """Joules an image that the run's devices drew in its windows: (images, seconds, moment of the end). run: its
        row. None where readings stand for less than MIN_READ_FRACTION of the windows, or are not of all nodes."""
        if run["nodes"] > 1:
            return None
        devices = [f"gpu{n}" for n, _ in self.gpus[: run["world_size"]]] if run["device"] == "cuda" else ["cpu"]
        times = [(end - seconds - self.began, end - self.began) for _, seconds, end in windows]
        watts = [mean_power_w(self.rows, device, times, device in self.by_counter) for device in devices]
        known = [power_w for power_w in watts if power_w is not None]
        if not known or len(known) < len(watts):
            return None
        return sum(known) * sum(seconds for _, seconds, _ in windows) / sum(images for images, _, _ in windows)


def mean_power_w(
    rows: list[dict], device: str, times: list[tuple[float, float]], by_counter: bool = False
) -> float | None:
    """Mean power in W within times (from, to); None where too little was read. by_counter: each row has the mean
    since the row before. A reading counts by how much of the times it stands for."""
    joules = read_s = 0.0
    for since, until, watts in _readings(rows, device, by_counter):
        inside_s = sum(max(0.0, min(until, end) - max(since, start)) for start, end in times)
        joules, read_s = joules + watts * inside_s, read_s + inside_s
    total_s = sum(end - start for start, end in times)
    return joules / read_s if read_s and read_s >= MIN_READ_FRACTION * total_s else None


def _readings(rows: list[dict], device: str, by_counter: bool) -> list[tuple[float, float, float]]:
    """(since when, until when, W) of each reading."""
    mine = [row for row in rows if row["device"] == device]
    if by_counter:
        spans = zip([0.0, *(row["t_s"] for row in mine)], mine, strict=False)
        return [(since, row["t_s"], row["power_w"]) for since, row in spans if row.get("power_w") is not None]
    read = [(row["t_s"], row["power_w"]) for row in mine if row.get("power_w") is not None]
    halfway = [(first + second) / 2 for (first, _), (second, _) in itertools.pairwise(read)]
    ends = zip([0.0, *halfway], read, [*halfway, math.inf], strict=False)
    return [
        (max(since, t_s - MAX_READING_AGE_S), min(until, t_s + MAX_READING_AGE_S), watts)
        for since, (t_s, watts), until in ends
    ]


def _clock_mhz() -> float | None:
    """The cores' mean clock, where the kernel knows it."""
    frequency = psutil.cpu_freq() if CPUFREQ.exists() else None
    return frequency.current if frequency else None


def _network_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True)
    return sum(nic.bytes_sent + nic.bytes_recv for name, nic in counters.items() if name != "lo")


def _rapl_j() -> float:
    """Joules of the CPU packages so far; 0 where the counters may not be read."""
    try:
        packages = [path for path in RAPL.glob("intel-rapl:*/energy_uj") if path.parent.name.count(":") == 1]
        return sum(int(path.read_text()) for path in packages) / 1e6
    except OSError:
        return 0.0


def _nvml_gpus() -> list[tuple[int, Any]]:
    """Numbers and handles of the visible GPUs; None for one that NVML cannot find."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no GPU: the suite runs without
        return []
    names = visible_devices()
    if names is None:
        names = [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
    gpus: dict[int, Any] = dict.fromkeys(range(len(names)))
    for number, name in enumerate(names):
        with contextlib.suppress(pynvml.NVMLError, ValueError):
            gpus[number] = _nvml_gpu(name)
    return [*gpus.items()]


def _nvml_gpu(name: str) -> Any:
    """By number, UUID, its beginning, or a MIG slice's UUID. Raises NVMLError."""
    import pynvml

    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    with contextlib.suppress(pynvml.NVMLError):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):  # NVML counts GPUs that this user may not read
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            if str(pynvml.nvmlDeviceGetUUID(gpu)).startswith(name):
                return gpu
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)


def _gpu_energy(gpu: Any) -> tuple[float, float | None]:
    """(moment, joules since the driver was loaded); None where it does not count them, or they are not the run's
    alone."""
    import pynvml

    try:
        used_j = None if _is_divided(gpu) else pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000
    except pynvml.NVMLError:
        used_j = None
    return time.monotonic(), used_j


def _is_divided(gpu: Any) -> bool:
    """Into slices (MIG), of which NVML reports the power of all together."""
    import pynvml

    try:
        return pynvml.nvmlDeviceGetMigMode(gpu)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:  # of a GPU that cannot be divided, or of a slice, whose power NVML does not tell
        return False


def _mean_between(earlier: tuple[float, float | None], later: tuple[float, float | None]) -> float | None:
    """W between two readings; None where one failed, or the driver was loaded anew."""
    (since_s, before_j), (until_s, after_j) = earlier, later
    if before_j is None or after_j is None or after_j < before_j or until_s <= since_s:
        return None
    return (after_j - before_j) / (until_s - since_s)


def _process_ids(gpu: Any) -> list[int] | None:
    """None where NVML does not tell."""
    import pynvml

    try:
        return [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]
    except pynvml.NVMLError:
        return None


def _gpu_row(gpu: Any) -> dict[str, Any]:
    import pynvml

    def ask(query: Callable[[], Any]) -> Any:
        try:
            return query()
        except pynvml.NVMLError:
            return None

    power_mw = None if _is_divided(gpu) else ask(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu))
    memory = ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(gpu))
    use = ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu))
    reasons = ask(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu)) or 0
    thermal = pynvml.nvmlClocksThrottleReasonSwThermalSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
    capped = pynvml.nvmlClocksThrottleReasonSwPowerCap | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    return {
        "util_pct": use.gpu if use else None,
        "memory_used_mb": memory.used / 1e6 if memory else None,
        "power_w": power_mw / 1000 if power_mw is not None else None,
        "temperature_c": ask(lambda: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU)),
        "throttle": "thermal" if reasons & thermal else "power" if reasons & capped else "",
    }
