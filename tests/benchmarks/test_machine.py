"""This machine: GPUs, cores, memory, compilers, and the facts by which runs are told apart."""

import os
import re
from types import SimpleNamespace

import pytest
import torch
import torch._inductor.config as inductor
from support import put
from torch._inductor.cpp_builder import cpp_compiler_search

from benchmarks.common import machine
from benchmarks.common.errors import Unavailable, UserError
from benchmarks.common.machine import host, prepare_compiler, usable_gpus

# --- GPUs -----------------------------------------------------------------------------------------------------------


def fake_cuda(capabilities, starts=True):
    """torch.cuda's stand-in."""

    def init():
        raise RuntimeError("CUDA unknown error\nmore")

    return SimpleNamespace(
        is_available=lambda: starts,
        device_count=lambda: len(capabilities),
        get_device_capability=capabilities.__getitem__,
        get_device_name="GPU {}".format,
        get_arch_list=lambda: ["sm_75", "sm_80", "sm_90"],
        init=init,
    )


@pytest.fixture
def gpu_machine(monkeypatch):
    """gpu_machine(fake_cuda(...), CUDA_VISIBLE_DEVICES, names below /dev)."""

    def make(cuda, visible=None, nodes=("nvidia0", "nvidia1")):
        monkeypatch.setattr(machine, "list_devices", lambda: [*nodes])
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    yield make
    torch.get_device_module.cache_clear()  # torch keeps the stand-in for the tests after this one


def test_usable_gpus_are_those_that_run_kernels(gpu_machine, monkeypatch):
    gpu_machine(fake_cuda([(8, 0), (8, 6)]))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert usable_gpus() == 2
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # else energy is of other GPUs, where there are two kinds
    for visible, number in (("0,1,", 2), ("", 0), ("-1,0", 0)):  # CUDA's list ends at a name that is none
        gpu_machine(fake_cuda([(8, 0), (8, 6)]), visible)
        assert usable_gpus() == number


@pytest.mark.parametrize(
    ("nodes", "has_tool", "is_there"),
    [((), True, False), (("dxg",), False, False), (("dxg",), True, True), (("nvidia0",), False, True)],
    ids=["login node", "another GPU in WSL", "WSL", "no nvidia-smi"],
)
def test_which_signs_are_an_nvidia_gpu(gpu_machine, tmp_path, monkeypatch, nodes, has_tool, is_there):
    put(tmp_path / "bin", **({"nvidia-smi": "true"} if has_tool else {}))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    gpu_machine(fake_cuda([], starts=False), nodes=nodes)
    if not is_there:
        assert usable_gpus() == 0
        return
    with pytest.raises(UserError, match="an NVIDIA GPU is here"):
        usable_gpus()


@pytest.mark.parametrize(
    ("cuda", "visible", "named"),
    [
        (fake_cuda([(9, 0), (7, 0)]), None, r"GPU 1 \(sm_70\)"),
        (fake_cuda([(8, 0)], starts=False), "0", "CUDA_VISIBLE_DEVICES=0: CUDA unknown error"),
        (fake_cuda([(8, 0)]), "0,7", "0,7 names more than the 1 GPU"),
    ],
)
def test_gpus_that_cannot_be_used_get_a_sentence(gpu_machine, cuda, visible, named):
    gpu_machine(cuda, visible)
    with pytest.raises(UserError, match=named):
        usable_gpus()


# --- cores and compilers --------------------------------------------------------------------------------------------

QUOTAS = {"a/cpu.max": "250000 100000", "a/b/cpu.max": "max 100000", "cpu.max": "400000 100000"}
QUOTAS |= {"cpu,cpuacct/cpu.cfs_quota_us": "50000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "membership", "found"),
    [
        (QUOTAS, "0::/a/b", 2),
        (QUOTAS, "3:memory:/x\n2:cpu,cpuacct:/of/the/host\n0::/", 1),  # version 1
        ({}, "0::/", 8),
    ],
)
def test_a_container_may_have_less_than_its_machine(tmp_path, monkeypatch, files, membership, found):
    (tmp_path / "own").write_text(membership)
    for name, text in files.items():
        (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "groups" / name).write_text(f"{text}\n")
    monkeypatch.setattr(machine, "CONTROL_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "own")
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert machine.num_cores() == found


def test_who_cannot_compile_is_told_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "CC"):
        monkeypatch.delenv(name, raising=False)
    for named in ("", "no-ccache g++"):  # of another project, in the user's shell
        monkeypatch.setenv("CXX", named)
        monkeypatch.setattr(inductor.cpp, "cxx", (None, named or "g++"))  # as torch reads CXX when it is imported
        cpp_compiler_search.cache_clear()
        with pytest.raises(Unavailable, match=re.escape(f"{named or 'g++'} does not start")):
            prepare_compiler(on_gpu=False)
    cpp_compiler_search.cache_clear()
    for named in ("", "gone"):
        monkeypatch.setenv("CC", named)
        assert f"there is no {named or 'gcc'}" in machine.missing_compiler(on_gpu=True)


# --- what tells machines apart --------------------------------------------------------------------------------------


def test_a_host_is_more_than_its_name(monkeypatch):
    board = {"/etc/machine-id": "1", "/sys/class/dmi/id/board_name": "X11", "/proc/cpuinfo": "microcode : 0x1\n"}
    files = dict(board)
    monkeypatch.setattr(machine, "_text", lambda path: files.get(str(path), ""))
    before = host({})
    for path, text in board.items():
        files[path] = text.replace("1", "2")
        assert host({}) != before, path
        files[path] = text
    assert host({}) == before and re.fullmatch("[0-9a-f]{12}", before)


def test_the_nodes_of_a_slurm_job_are_one_host(monkeypatch):
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CLUSTER_NAME": "c"}
    found = []
    for name in ("n1", "n2"):  # whichever reports
        monkeypatch.setattr(machine.platform, "node", lambda name=name: f"{name}.example.org")
        found.append(host(job | {"SLURMD_NODENAME": name}))
    assert found[0] == found[1] != host(job | {"SLURMD_NODENAME": "n2", "SLURM_JOB_NODELIST": "n[2-3]"})
    assert host(job | {"SLURMD_NODENAME": "node1"}) == host({})
