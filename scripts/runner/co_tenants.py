"""What else used the cores and the GPUs of a run: other programs, the hypervisor, other suites."""

import os
import resource
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

from benchmarks.common.run_folder import RUN_DIR_VARIABLE


class CoreCounters:
    """Counters of the usable cores, read before and after a run, so that it pays nothing for them."""

    def __init__(self) -> None:
        self.before, self.own_before_s = _core_seconds(), _own_cpu_s()

    def shares(self, rank_cpu_s: float | None) -> dict[str, float | None]:
        """Columns of runs.csv, per cent of the cores' time. rank_cpu_s: CPU time of a rank, as the rank reports it.

        other_cpu_pct: the time of all programs less that of this process and its children; unknown where a rank is no
        child, as under Slurm.
        """
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


class CoTenants:
    """Counts processes on GPUs that are not of this run: those there before it, and those without its mark."""

    def __init__(self, run_dir: Path | None, there_before: Iterable[int] = ()):
        self.run_dir, self.foreign = str(run_dir), dict.fromkeys(there_before, True)

    def count(self, pids: Collection[int]) -> int:
        """How many of these are others'."""
        for pid in pids:
            if pid not in self.foreign:
                self.foreign[pid] = self._is_foreign(pid)
        return sum(self.foreign[pid] for pid in pids)

    def _is_foreign(self, pid: int) -> bool:
        try:
            return psutil.Process(pid).environ().get(RUN_DIR_VARIABLE) != self.run_dir
        except psutil.AccessDenied:  # another user's
            return True
        except psutil.Error:
            return False
