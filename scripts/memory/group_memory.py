"""Memory that a container or a Slurm job leaves this process."""

import contextlib
import math
import re
from pathlib import Path

from benchmarks.common.machine import control_groups


def free_group_memory_bytes() -> float:
    """Infinity without a limit."""
    return min(map(_free_memory_of_group, control_groups("memory")), default=math.inf)


def _free_memory_of_group(group: Path) -> float:
    """Unused pages of files count as free."""
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
