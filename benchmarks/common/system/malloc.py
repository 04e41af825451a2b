"""What the C library does with memory that a process frees: keep it, for ranks on a CPU."""

import ctypes
import os

# malloc.h of glibc; mallopt(3)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1
LARGEST_BEFORE = 2**25
"""The largest M_MMAP_THRESHOLD that older versions of glibc take."""
OWN_CHOICE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
"""Variables by which a user chooses this himself."""


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, for the next tensor of that size. Another C library is left as it is.

    By default glibc returns large blocks to the kernel, which clears each page anew when it is used again. Whether that
    happens in every step or in none depends on what else the process has allocated: the last block of ResNet-18 took
    29 ms or 14 ms for eight images. Ranks of one run, and runs of one strategy, had two speeds by it.
    """
    if any(os.environ.get(name) for name in OWN_CHOICE):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and (mallopt(M_MMAP_THRESHOLD, LARGEST) or mallopt(M_MMAP_THRESHOLD, LARGEST_BEFORE)):
        mallopt(M_TRIM_THRESHOLD, LARGEST)
