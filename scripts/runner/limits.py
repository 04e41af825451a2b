"""The limit of this machine that a failed run met, with its number: 64 MB of /dev/shm, `ulimit -u`, a container's
memory."""

import contextlib
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path

from benchmarks.common.machine import control_groups

SHARED_MEMORY = Path("/dev/shm")


def shared_memory() -> str:
    with contextlib.suppress(OSError):
        found = os.statvfs(SHARED_MEMORY)
        size_mb, free_mb = (blocks * found.f_frsize / 1e6 for blocks in (found.f_blocks, found.f_bavail))
        return f"/dev/shm has {size_mb:.3g} MB, and {free_mb:.3g} are free; docker gives more by --shm-size=1g"
    return "there is no /dev/shm"


def processes() -> str:
    most = _least(resource.RLIMIT_NPROC, "pids", "pids.max")
    return f"there may be {most} processes and threads (ulimit -u, or pids.max of a container)" if most else ""


def memory() -> str:
    most = _least(resource.RLIMIT_AS, "memory", "memory.max", "memory.limit_in_bytes")
    return f"{most / 1e9:.3g} GB may be used (ulimit -v, or a container's memory)" if most else ""


def open_files() -> str:
    return f"a process may have {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files open; raise ulimit -n"


LIMITS: tuple[tuple[re.Pattern[str], Callable[[], str]], ...] = (
    (re.compile(r"/dev/shm|shared memory|\bbus error\b", re.IGNORECASE), shared_memory),
    (re.compile(r"can't start new thread|[Tt]hread creation failed|pthread_create|temporarily unavailable"), processes),
    (re.compile(r"signal 9\b|[Cc]an(no|')t allocate memory|\bMemoryError\b|bad_alloc"), memory),
    (re.compile(r"Too many open files"), open_files),
)


def met_limit(reason: str) -> str:
    """'; ' and the limit that may have caused a failure; '' where there is none. reason: of the row."""
    found = (describe() for pattern, describe in LIMITS if pattern.search(reason))
    return "".join(f"; {text}" for text in found if text)


def _least(kind: int, controller: str, *files: str) -> int:
    """The least of the process's limit and those of its control groups; 0 without any."""
    soft, _ = resource.getrlimit(kind)
    found = [soft] if soft != resource.RLIM_INFINITY else []
    for path in (group / name for group in control_groups(controller) for name in files):
        with contextlib.suppress(OSError, ValueError):  # "max"
            found.append(int(path.read_text()))
    return min((most for most in found if most < 2**62), default=0)  # version 1 without a limit has about 2^63
