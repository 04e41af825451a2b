"""Samples the machine beside a run, twice a second: GPUs through NVML, CPU, memory and network through psutil.

Used by scripts/attempt.py; its rows become telemetry.csv.
"""

import threading
import time

import psutil

PERIOD_S = 0.5


class Sampler(threading.Thread):
    """A thread that collects telemetry rows from `start()` until `stop()`; t_s counts from the start.

    Utilisation in per cent (of all cores, or of the GPU), memory in 10^6 bytes, power in W, network in 10^6
    bytes a second over every interface but loopback. A GPU that NVML cannot read has no rows.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.rows: list[dict] = []
        self.stopped = threading.Event()
        self.gpus = _nvml_gpus()

    def run(self) -> None:
        self.began = time.monotonic()
        psutil.cpu_percent()  # the first call has nothing to compare with
        before, then = _network_bytes(), self.began
        while not self.stopped.wait(PERIOD_S):
            now, network = time.monotonic(), _network_bytes()
            self.rows.append({
                "t_s": now - self.began, "device": "cpu", "util_pct": psutil.cpu_percent(),
                "memory_used_mb": psutil.virtual_memory().used / 1e6,
                "network_mb_per_s": (network - before) / 1e6 / (now - then),
            })  # fmt: skip
            before, then = network, now
            self.rows += [{"t_s": now - self.began, "device": f"gpu{n}", **_gpu_row(gpu)} for n, gpu in self.gpus]

    def stop(self) -> list[dict]:
        """End the thread and return its rows."""
        self.stopped.set()
        self.join()
        return self.rows

    def energy_j(self, first: float, last: float) -> float | None:
        """Joules that all GPUs drew between two moments of time.monotonic(), or None where none was read."""
        inside = [row for row in self.rows if row.get("power_w") and first <= self.began + row["t_s"] <= last]
        moments = {row["t_s"] for row in inside}
        if not inside:
            return None
        return sum(row["power_w"] for row in inside) / len(moments) * (last - first)


def _network_bytes() -> int:
    counters = psutil.net_io_counters(pernic=True)
    return sum(nic.bytes_sent + nic.bytes_recv for name, nic in counters.items() if name != "lo")


def _nvml_gpus() -> list[tuple[int, object]]:
    import pynvml

    try:
        pynvml.nvmlInit()
        return [(n, pynvml.nvmlDeviceGetHandleByIndex(n)) for n in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []


def _gpu_row(gpu) -> dict:
    """What NVML says of one GPU; what this GPU does not tell stays empty."""
    import pynvml

    def ask(question):
        try:
            return question()
        except pynvml.NVMLError:
            return None

    power_mw = ask(lambda: pynvml.nvmlDeviceGetPowerUsage(gpu))
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
