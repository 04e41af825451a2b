"""What glibc does with freed memory: in processes of their own, for it holds for a whole process."""

import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.system.malloc import OWN_CHOICE

PROGRAM = """
import ctypes, resource, sys
from benchmarks.common.system.malloc import keep_freed_memory
libc, num_bytes = ctypes.CDLL(None), 2**26
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
if sys.argv[1] == "keep":
    keep_freed_memory()

def use():
    block = libc.malloc(ctypes.c_size_t(num_bytes))
    ctypes.memset(block, 1, num_bytes)
    libc.free(block)

use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
FEW = 10  # a huge page is one fault, and a block has 32 of them


def page_faults(word: str, **variables: str) -> int:
    env = {
        name: value for name, value in environment(**variables).items() if name in variables or name not in OWN_CHOICE
    }
    command = [sys.executable, "-c", PROGRAM, word]
    return int(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout)


def test_a_rank_uses_the_memory_again_that_it_has_freed():
    """Protects a steady speed: whether a step has to clear its pages anew depended on the cut, and differed from run to
    run. Mutants: no mallopt; one of the two thresholds alone."""
    assert page_faults("default") > FEW, "the C library returns this block to the kernel"
    assert page_faults("keep") < FEW


@pytest.mark.parametrize("name", ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"])
def test_a_user_may_choose_otherwise(name):
    """Protects a variable that a user has set, which is recorded in the settings. Mutant: the suite's values anyway."""
    assert page_faults("keep", **{name: "1000000"}) > FEW
