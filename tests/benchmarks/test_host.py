"""What of a machine is part of a run's settings, and which options a strategy reads.

.venv/bin/python -m pytest tests/benchmarks/test_host.py
"""

import ast
import math
import os
import re

import pytest
from support import ROOT, STRATEGIES

from benchmarks.common import machine
from benchmarks.common.machine import host, machine_facts, nccl_conf
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


def test_what_nccl_reads_from_files_separates_runs(monkeypatch):
    """Protects an interval from rounds with two nccl.conf, of which no variable tells. Mutants: either file left
    out; the user's read beside the one that NCCL_CONF_FILE names."""
    own, files = os.path.expanduser("~/.nccl.conf"), {}
    monkeypatch.setattr(machine, "_text", lambda path: files.get(str(path), ""))
    assert nccl_conf({}) == "none"
    found = []
    for path, text in [(own, "NCCL_ALGO=Ring"), (own, "NCCL_ALGO=Tree"), ("/etc/nccl.conf", "NCCL_PROTO=LL")]:
        files[path] = text
        found.append(nccl_conf({}))
    assert len({*found}) == 3 and all(re.fullmatch("#[0-9a-f]{12}", each) for each in found)
    files["/named"] = files.pop(own)
    assert nccl_conf({"NCCL_CONF_FILE": "/named"}) == found[-1]
    files[own] = "NCCL_ALGO=Ring"
    assert nccl_conf({"NCCL_CONF_FILE": "/named"}) == found[-1] != nccl_conf({})


def test_a_host_is_more_than_its_name(monkeypatch):
    """Protects from pooling two machines of one name. Mutant: machine-id, board or microcode left out of the hash."""
    files = {
        "/etc/machine-id": "1",
        "/sys/class/dmi/id/board_name": "X11",
        "/proc/cpuinfo": "microcode : 0x1\nflags : avx",
    }
    monkeypatch.setattr(machine, "_text", lambda path: files.get(str(path), ""))
    before = host({})
    for path, text in files.items():
        monkeypatch.setitem(files, path, text.replace("1", "2"))
        assert host({}) != before, path
        monkeypatch.setitem(files, path, text)
    assert host({}) == before and re.fullmatch("[0-9a-f]{12}", before)


def test_the_nodes_of_a_slurm_job_are_one_host_set(monkeypatch):
    """Protects the comparison of strategies in make slurm-all: whichever node reports. On one host that plays two
    nodes, as the local cluster does, it is that host."""
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CLUSTER_NAME": "c"}
    found = []
    for name in ("n1", "n2"):
        monkeypatch.setattr(machine.platform, "node", lambda name=name: f"{name}.example.org")
        found.append(host(job | {"SLURMD_NODENAME": name}))
        assert host(job | {"SLURMD_NODENAME": "node1"}) == host({}) != found[-1]
    assert found[0] == found[1] != host(job | {"SLURMD_NODENAME": "n2", "SLURM_JOB_NODELIST": "n[2-3]"})


@pytest.mark.parametrize(
    "membership, files, cores",
    [
        ("0::/", {}, math.inf),
        ("0::/", {"cpu.max": "1600000 100000"}, 16),
        ("0::/a/b", {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "400000 100000"}, 2.5),
        (
            "3:memory:/x\n2:cpu,cpuacct:/of/the/host\n0::/",
            {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"},
            0.5,
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
    ],
)
def test_a_containers_quota_of_processor_time_is_a_number_of_cores(tmp_path, monkeypatch, membership, files, cores):
    """Protects a container on a large machine, as Kubernetes lends GPUs: it may run on every core, but not for long.
    Ranks would have threads, and loaders workers, for all of the machine's cores. Mutants: the affinity alone; the
    innermost group alone; version 2 alone."""
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    found = machine.quota_cores(tmp_path / "groups", tmp_path / "own")
    assert found == cores
    monkeypatch.setattr(machine, "quota_cores", lambda: found)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.num_cores() == max(1, min(8, int(min(cores, 8)))) == machine_facts()["num_cores"]


@pytest.mark.parametrize(
    "membership, files, free_bytes",
    [
        ("0::/", {}, math.inf),
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
    """Protects `docker run --memory` and Slurm's --mem: the host's free memory is not the container's, whose processes
    the kernel would kill. Mutants: the innermost group alone; version 2 alone; pages of files counted as used."""
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_table_of_readers_is_what_scripts_read(strategy):
    """Protects the rule that an option which is not read is no setting: an option added to a script is found here.
    Mutant: a strategy taken out of a row of READERS."""
    helpers: dict[str, set[str]] = {}
    for path in [*(ROOT / "benchmarks" / "common").rglob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                text = ast.unparse(node)
                fields = {*re.findall(r"\bconfig\.(\w+)", text)}
                fields |= set(READERS) & {
                    *re.findall(r"'(static_graph|gradient_as_bucket_view|broadcast_buffers)'", text)
                }
                helpers[node.name] = fields & READERS.keys()
    found = read_fields(ROOT / "benchmarks" / f"{strategy}.py", helpers) & READERS.keys()
    assert found == {name for name, strategies in READERS.items() if strategy in strategies}
