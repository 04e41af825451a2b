"""What the C library does with memory that a process frees: with glibc, a rank on a CPU keeps most of it."""

import ctypes
import os

# glibc's numbers of these parameters; mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
LARGEST_BEFORE = 2**25
"""The largest M_MMAP_THRESHOLD that older versions of glibc take."""
OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")
"""With one of these set, or glibc.malloc in GLIBC_TUNABLES, the process keeps the user's choice."""


def keep_freed_memory() -> None:
    """Have glibc keep most of what the main thread frees, for the next tensor of that size. By default it can return
    large blocks to the kernel, which clears each page anew: a step may then take twice as long. Without mallopt, as in
    musl, nothing changes."""
    if any(os.environ.get(name) for name in OWN_CHOICE) or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, LARGEST) or mallopt(M_MMAP_THRESHOLD, LARGEST_BEFORE)):
        mallopt(M_TRIM_THRESHOLD, LARGEST)
