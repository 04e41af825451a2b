"""How many GPUs, cores, ranks and threads a run has: from environment variables, else from the machine.

Imports torch only where there may be GPUs and nobody has counted them.
"""

import contextlib
import math
import os
import re
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.gpus import usable_gpus
from scripts.shared.options_as_typed import option_as_typed

HOST = re.compile(r"\w[\w.-]*:(?P<ranks>[1-9][0-9]{0,5})", re.ASCII)  # of HOSTS; a name with - in front is a flag
NEWEST_CAPABILITY = (9, 0)  # compute capability of GPUs that are not at hand, such as those of a cluster's nodes
MAX_DIGITS = 9  # more than any machine has of anything
CONTROL_GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def number_from_env(name: str, what: str, least: int = 1) -> int | None:
    """The whole number in environment variable `name`, None where it is not set.

    Raises UserError, which says that it must be `what`, for other text, and for more than MAX_DIGITS.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS or int(text) < least:
        raise UserError(f"{option_as_typed(name)} is {text[:40]!r}, but must be {what}, {least} or more")
    return int(text)


def num_gpus() -> int:
    """NUM_GPUS, else those that torch can use. Raises UserError where there are some that it cannot."""
    number = number_from_env("NUM_GPUS", "a number of GPUs", least=0)
    return usable_gpus() if number is None else number


def min_compute_capability() -> tuple[int, int] | None:
    """The least compute capability of the GPUs of a run; None without GPUs. Of GPUs elsewhere the newest is assumed."""
    if not num_gpus() and os.environ.get("GPUS_PER_NODE", "0") == "0":
        return None
    return min(((gpu.major, gpu.minor) for gpu in _visible_gpus()), default=NEWEST_CAPABILITY)


def gpu_memory_bytes(num_used: int) -> float | None:
    """Memory of the smallest of the first num_used GPUs: GPU_MEMORY_GB (10^9 bytes), else as torch says; None where
    nobody knows."""
    if not num_gpus():
        return None
    if text := os.environ.get("GPU_MEMORY_GB", ""):
        with contextlib.suppress(ValueError):
            if 0 < float(text) < float("inf"):
                return float(text) * 1e9
        raise UserError(f"GPU_MEMORY_GB is {text!r}, but must be 10^9 bytes, such as 16.9 for a V100 of 16 GB")
    return min((gpu.total_memory for gpu in _visible_gpus()[:num_used]), default=None)


def gpu_names() -> str:
    """What the vendor calls the GPUs that torch can use, each kind once; '' without any."""
    return " + ".join(dict.fromkeys(gpu.name for gpu in _visible_gpus()))


def _visible_gpus() -> list:
    """torch's properties of each GPU that it can use. They make no CUDA context, which would take memory from runs."""
    with contextlib.suppress(UserError):
        if num_visible := usable_gpus():
            import torch

            return [torch.cuda.get_device_properties(index) for index in range(num_visible)]
    return []


def num_cores() -> int:
    """Cores that this process may run on, and no more than its container's quota of processor time comes to."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(allowed, quota_cores())))


def quota_cores(folder: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP) -> float:
    """How many cores the quotas of this process's control groups come to, as `docker run --cpus` sets them; infinity
    without any. folder: where control groups are mounted, of version 2 or 1 (man 7 cgroups)."""
    return min(map(_quota_of_group, _control_groups("cpu", folder, membership)), default=math.inf)


def free_group_memory_bytes(folder: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Memory that this process's control groups leave it, as Slurm's --mem limits it; infinity without a limit."""
    return min(map(_free_memory_of_group, _control_groups("memory", folder, membership)), default=math.inf)


def _control_groups(controller: str, folder: Path, membership: Path) -> list[Path]:
    """The folders of this process's control groups that may limit what the controller counts, and those around."""
    groups: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = folder / controllers
        group = top / path.strip("/")  # in a container this may be the host's path, and `top` is the container's group
        groups += [each for each in (group, *group.parents) if each.is_relative_to(top)]
    return groups


def _quota_of_group(group: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return math.inf


def _free_memory_of_group(group: Path) -> float:
    """Bytes that the group's limit leaves. Pages of files that nobody has used lately count as free."""
    with contextlib.suppress(OSError, ValueError):
        if (group / "memory.max").exists():
            limit, used, dropped_first = group / "memory.max", group / "memory.current", "inactive_file"
        else:
            limit, used = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes"
            dropped_first = "total_inactive_file"
        if (most := limit.read_text().strip()) != "max":  # version 1 without a limit has about 2^63
            return max(0, int(most) - int(used.read_text()) + _number_in(group / "memory.stat", dropped_first))
    return math.inf


def _number_in(path: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def num_ranks() -> int:
    """Ranks on this machine: NPROC, else one a GPU, else 2."""
    return number_from_env("NPROC", "a number of ranks") or num_gpus() or 2


def threads_per_rank(ranks: int) -> int:
    """THREADS_PER_RANK, else an equal share of the cores: on a CPU one rank stands for one device."""
    return number_from_env("THREADS_PER_RANK", "a number of threads") or max(1, num_cores() // ranks)


def resolve_num_workers(requested: int | str, on_gpu: bool) -> int:
    """The loader workers of a rank. `auto`: with a GPU the rank's cores minus one, else 0, as the rank computes on
    them."""
    if requested != "auto":
        return int(requested)
    return max(1, threads_per_rank(num_ranks()) - 1) if on_gpu else 0


def node_rank() -> int:
    """NODE_RANK, this node's number among the NNODES nodes, from 0 on. Raises UserError."""
    num_nodes = number_from_env("NNODES", "a number of nodes") or 1
    node = number_from_env("NODE_RANK", "the number of this node, of which the first is 0", least=0) or 0
    if node >= num_nodes:
        raise UserError(f"NODE_RANK is {node}, but must be less than NNODES, which is {num_nodes}; the first node is 0")
    return node


def ranks_and_nodes(ranks_here: int) -> tuple[int, int]:
    """(ranks, nodes) in all, where every machine has `ranks_here`: of HOSTS, of a Slurm job's NODES, or of NNODES.
    Raises UserError."""
    if text := os.environ.get("HOSTS", ""):
        hosts = [match for host in text.split(",") if (match := HOST.fullmatch(host))]
        if len(hosts) != text.count(",") + 1:
            raise UserError(f"HOSTS is {text!r}, but must be hosts and their ranks, 1 or more each, such as a:4,b:4")
        return sum(int(host["ranks"]) for host in hosts), len(hosts)
    nodes, tasks = (
        number_from_env("NODES", "a number of nodes"),
        number_from_env("TASKS_PER_NODE", "a number of ranks a node"),
    )
    if nodes or tasks:
        return (nodes or 1) * tasks if tasks else ranks_here, nodes or 1
    nodes = number_from_env("NNODES", "a number of nodes") or 1
    return ranks_here * nodes, nodes
