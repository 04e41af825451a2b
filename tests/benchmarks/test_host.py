"""What of a machine is part of a run's settings, and which options a strategy reads.

.venv/bin/python -m pytest tests/benchmarks/test_host.py
"""

import ast
import math
import re

import pytest
from support import ROOT, STRATEGIES

from scripts.memory.group_memory import free_group_memory_bytes
from scripts.results.settings import READERS
from scripts.runner.kernel_variables import kernel_variables


def test_variables_that_change_kernels_are_recorded_and_the_launchers_own_are_not():
    """Protects groups from falling apart: launchers set some of these for some strategies only."""
    env = {"PATH": "/bin", "HOME": "/root", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_HOME": "/x"}
    env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "NCCL_SOCKET_IFNAME": "lo", "MKL_DEBUG": ""}
    assert kernel_variables(env) == "none"
    own = {"LD_PRELOAD": "/a/libjemalloc.so", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    own |= {"NCCL_SOCKET_IFNAME": "eth0", "KMP_AFFINITY": "compact", "OMP_PROC_BIND": "true"}
    own |= {"TORCH_DIST_USE_NCCL2": "0"}  # by which NCCL's process groups are compared
    assert kernel_variables(env | own) == " ".join(f"{name}={own[name]}" for name in sorted(own))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("HOROVOD_CYCLE_TIME", "100"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"),
    ],
)
def test_a_variable_that_changes_the_speed_separates_runs(name, text):
    """Protects an interval from rounds of two kinds: one shell had CUDA_LAUNCH_BLOCKING left from a search for a bug.
    Mutant: each of the names left out."""
    assert kernel_variables({name: text}) == f"{name}={text}"


def test_variables_that_only_say_where_something_is_are_not_recorded():
    """Protects groups from falling apart: images of containers, and torch itself, set some of these."""
    env = {"CUDA_HOME": "/usr/local/cuda", "CUDA_VERSION": "13.2", "CUDA_VISIBLE_DEVICES": "0", "TRITON_HOME": "/x"}
    env |= {"TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_ann", "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    env |= {"HOROVOD_WITH_PYTORCH": "1", "PYTORCH_VERSION": "2.15", "PYTORCH_BUILD_NUMBER": "0"}
    assert kernel_variables(env) == "none"


@pytest.mark.parametrize(
    "membership, files, free_bytes",
    [
        ("0::/", {"memory.max": "900", "memory.current": "950"}, 0),
        (
            "0::/",
            {"memory.max": "900", "memory.current": "500", "memory.stat": "anon 30\nactive_file 7\ninactive_file 300"},
            700,
        ),
        (
            "0::/job/step",
            {"job/memory.max": "800", "job/memory.current": "600", "job/step/memory.max": "max"},
            200,
        ),
        (
            "4:memory:/of/the/host\n0::/",
            {
                "memory/memory.limit_in_bytes": "700",
                "memory/memory.usage_in_bytes": "500",
                "memory/memory.stat": "inactive_file 9\ntotal_inactive_file 100",
            },
            300,
        ),
    ],
)
def test_a_containers_limit_of_memory_bounds_what_is_free(tmp_path, membership, files, free_bytes):
    """`docker run --memory` and Slurm's --mem: the kernel would kill the container's processes."""
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    assert free_group_memory_bytes(tmp_path / "groups", tmp_path / "own") == free_bytes
    assert free_group_memory_bytes(tmp_path / "groups", tmp_path / "none") == math.inf


def read_fields(path, seen) -> set[str]:
    """Fields of the configuration that a strategy's script reads, also by functions that it calls with `config`."""
    tree = ast.parse(path.read_text())
    own = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "config"
    }
    called = {
        ast.unparse(node.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and any(ast.unparse(argument) == "config" for argument in node.args)
    }
    return own | {name for call in called for name in seen.get(call, ())}


def test_the_table_of_readers_is_what_scripts_read():
    """An option that is not read is no setting: one that is added to a script is found here."""
    helpers: dict[str, set[str]] = {}
    ddp_options = r"\bconfig\.(\w+)|'(static_graph|gradient_as_bucket_view|broadcast_buffers)'"
    for path in (ROOT / "benchmarks" / "common").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                found = re.findall(ddp_options, ast.unparse(node))
                helpers[node.name] = {name for names in found for name in names} & READERS.keys()
    for strategy in STRATEGIES:
        found = read_fields(ROOT / "benchmarks" / f"{strategy}.py", helpers) & READERS.keys()
        assert found == {name for name, strategies in READERS.items() if strategy in strategies}, strategy
