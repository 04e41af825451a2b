"""What a user's shell holds for other programs, and what of it reaches a run.

.venv/bin/python -m pytest tests/runner/test_variables.py
"""

import json
import os
import subprocess
import sys

import pytest
from support import ROOT, environment, put, start_bench

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
    again = dict(bare)
    prepare(again)
    assert again == bare and recorded_variables(bare) == "none"


@pytest.mark.parametrize(
    "text",
    [
        "ATEN_CPU_CAPABILITY=avx2",
        "CUDA_LAUNCH_BLOCKING=1",
        "GLIBC_TUNABLES=glibc.malloc.arena_max=1",
        "HOROVOD_CYCLE_TIME=100",
        "LD_PRELOAD=/a/libjemalloc.so",
        "MALLOC_TRIM_THRESHOLD_=1000000",
        "NCCL_ALGO=Ring NCCL_SOCKET_IFNAME=eth0",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_NCCL_BLOCKING_WAIT=1",
    ],
)
def test_what_changes_the_speed_is_a_setting(text):
    """Protects from pooling rounds of two kinds: one shell had CUDA_LAUNCH_BLOCKING left from a search for a bug."""
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
    """Protects a steady speed: whether a step has to clear its pages anew differed from run to run."""

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


def test_python_does_not_end_at_a_prompt():
    done = subprocess.run(
        [sys.executable, ROOT / "bench", "--help"],
        env=environment(PYTHONINSPECT=1, PYTHONSAFEPATH=1),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stderr == "" and "./bench run" in done.stdout


@pytest.mark.launches
def test_a_launcher_of_an_archive_needs_no_right_to_be_executed(checkout, recorder, tmp_path, tiny_data):
    (tmp_path / "a set").mkdir()
    (tmp_path / "a set" / "environment.json").write_text("{}")  # collecting it takes seconds
    launcher = checkout / "launchers" / "single.sh"
    mode = launcher.stat().st_mode
    launcher.chmod(0o644)
    try:
        env = recorder.variables | {"PASSED_ON": "bench scripts.runner.record scripts.runner.environment"}
        words = {"STRATEGIES": "single", "REPEATS": 1, "DATA": tiny_data, "RESULTS": tmp_path / "a set"}
        done = start_bench(checkout, popen=subprocess.run, **env, **words, capture_output=True, text=True)
    finally:
        launcher.chmod(mode)
    rows = read_table(tmp_path / "a set", "runs")
    assert [*rows.status] == ["ok"], done.stdout + done.stderr


def test_a_sitecustomize_that_prints_is_no_host(recorder, tmp_path):
    """Horovod's launcher asks a program which hosts are others."""
    (tmp_path / "sitecustomize.py").write_text('print("welcome")\n')
    put(tmp_path / "bin", ssh="exit 0")
    env = environment(
        **recorder.variables | {"PASSED_ON": "scripts.runner.by_hand", "PYTHONPATH": tmp_path},
        PATH=f"{tmp_path}/bin:{os.environ['PATH']}",
        HOSTS="localhost:1,127.0.0.2:1",
        RESULTS=tmp_path / "a set",
    )
    words = [ROOT / "launchers/horovod_ddp.sh", "--loader", "synthetic"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    command = recorder.calls()[-1]["words"]
    assert command[command.index("--network-interfaces") + 1] == "lo"
