"""What a user's shell holds for other programs, and what of it reaches a run."""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT

from benchmarks.common.rows import read_table
from scripts.runner.variables import LARGEST, malloc_settings, prepare, recorded_variables

BARE = {"PATH": "/bin", "HOME": "/root"}
EVERYDAY = {  # of public reports: each made a run fail, or gave it a wrong number
    **{"OMP_PROC_BIND": "true", "OMP_PLACES": "cores", "GOMP_CPU_AFFINITY": "0", "KMP_AFFINITY": "compact"},
    **{"OMP_THREAD_LIMIT": "1", "OMP_DYNAMIC": "true", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    **{"OMP_NUM_THREADS": "7", "THREADS_PER_RANK": "1"},
    **{"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"},
    **{"HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1", "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1"},
    **{
        "RANK": "3",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "4",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    },
    **{"PET_STANDALONE": "1", "PET_NNODES": "2", "RENDEZVOUS_FILE": "/x", "RUN_DIR": "/x", "RUN_ID": "17"},
    **{"NVIDIA_TF32_OVERRIDE": "1", "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "TORCH_COMPILE_DISABLE": "1"},
    **{"MPLBACKEND": "module://matplotlib_inline.backend_inline", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"},
    **{"NUM_GPUS": "1", "SLURM_EXPORT_ENV": "NONE", "GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"},
    **{"PYTHONSAFEPATH": "1", "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error"},
}


def test_nothing_of_an_everyday_shell_is_left():
    """What a launcher sets for each run is its own matter."""
    shell, bare = BARE | EVERYDAY, dict(BARE)
    prepare(shell)
    prepare(bare)
    by_launchers = {"OMP_NUM_THREADS", "THREADS_PER_RANK", "RUN_ID", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}
    assert {name: text for name, text in shell.items() if name not in by_launchers} == bare
    assert recorded_variables(bare) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA_LAUNCH_BLOCKING=1",
        "GLIBC_TUNABLES=glibc.malloc.arena_max=1",
        "MALLOC_TRIM_THRESHOLD_=1000000",
        "NCCL_ALGO=Ring NCCL_SOCKET_IFNAME=eth0",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_NCCL_BLOCKING_WAIT=1",
    ],
)
def test_what_changes_the_speed_is_a_setting(text):
    """One shell had CUDA_LAUNCH_BLOCKING left from a search for a bug."""
    shell = BARE | dict(item.split("=", 1) for item in text.split())
    prepare(shell)
    assert recorded_variables(shell) == text


USE_AND_FREE = """
import ctypes, resource
libc, num_bytes = ctypes.CDLL(None), 2**26
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]

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


@pytest.mark.real_interpreter
def test_memory_that_was_freed_is_used_again_unless_the_user_says_otherwise():
    """Whether a step had to clear its pages anew differed from run to run."""

    def page_faults(**chosen: str) -> int:
        env = BARE | chosen
        prepare(env)
        command = [sys.executable, "-c", USE_AND_FREE]
        return int(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)

    if malloc_settings().get("MALLOC_MMAP_THRESHOLD_") != str(LARGEST):
        pytest.skip("this C library returns blocks of 64 MiB whatever the threshold")
    few = 10  # a huge page is one fault, and a block has 32 of them
    assert page_faults() < few < page_faults(MALLOC_MMAP_THRESHOLD_="1000000")
    assert page_faults(GLIBC_TUNABLES="glibc.malloc.mmap_threshold=1000000") > few


# --- through the launchers ----------------------------------------------------------------------------------------


@pytest.mark.launches
@pytest.mark.real_interpreter  # what libraries read when they are loaded
@pytest.mark.parametrize("name", ["ddp", "horovod_ddp"])
def test_a_run_is_the_same_from_an_everyday_shell(tmp_path, tiny_data, tiny_config, name):
    """With `env -i` and with all of these variables: both ranks train, with the same settings."""
    (tmp_path / "elsewhere" / "launchers").mkdir(parents=True)
    own = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHON": sys.executable, "THREADS_PER_RANK": "1"}
    rows, hashes = [], []
    for shell in ({}, EVERYDAY | {"CDPATH": str(tmp_path / "elsewhere")}):
        results = tmp_path / f"set {len(rows)}"
        words = ["launchers/" + f"{name}.sh", "--config", tiny_config, "--data", tiny_data, "--epochs", "1"]
        env = own | shell | {"RESULTS": str(results), "PATH": own["PATH"], "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        (row,) = read_table(results, "runs").to_dict("records")
        (settings,) = read_table(results, "settings").to_dict("records")
        rows.append((row["status"], row["world_size"], row["threads_per_rank"], row["device"]))
        hashes.append(settings["settings"])
        assert json.loads(settings["met"])["num_cores"] == len(os.sched_getaffinity(0))
    assert rows == [("ok", 2, 1, "cpu")] * 2 and len({*hashes}) == 1
