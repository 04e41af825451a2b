"""What glibc does with freed memory: in processes of their own, for it holds for a whole process."""

import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.rank import OWN_CHOICE

PROGRAM = """
import ctypes, resource, sys
if sys.argv[1] == "largest":
    sys.exit(not ctypes.CDLL(None).mallopt(-3, 2**31 - 1))
from benchmarks.common.rank import keep_freed_memory
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


@pytest.fixture(scope="module", autouse=True)
def takes_large_thresholds():
    if subprocess.run([sys.executable, "-c", PROGRAM, "largest"], capture_output=True).returncode:
        pytest.skip("this C library returns blocks of 64 MiB whatever the threshold")


def page_faults(word: str, **variables: str) -> int:
    chosen = {*OWN_CHOICE, "GLIBC_TUNABLES"} - variables.keys()
    env = {name: value for name, value in environment(**variables).items() if name not in chosen}
    command = [sys.executable, "-c", PROGRAM, word]
    return int(subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout)


def test_a_rank_uses_the_memory_again_that_it_has_freed():
    """Protects a steady speed: whether a step has to clear its pages anew depended on the cut, and differed from run to
    run. Mutants: no mallopt; one of the two thresholds alone."""
    assert page_faults("default") > FEW, "the C library returns this block to the kernel"
    assert page_faults("keep") < FEW


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "1000000"),
        ("MALLOC_TRIM_THRESHOLD_", "1000000"),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1000000"),
    ],
)
def test_a_user_may_choose_otherwise(name, value):
    """Protects a variable that a user has set, which is recorded in the settings. Mutant: the suite's values anyway."""
    assert page_faults("keep", **{name: value}) > FEW
