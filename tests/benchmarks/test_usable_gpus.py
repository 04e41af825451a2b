"""Which GPUs a run may use, and what a user is told about those that it may not.

.venv/bin/python -m pytest tests/benchmarks/test_usable_gpus.py
"""

import os
import shutil
import types

import pytest
import torch
from support import put

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.machine import usable_gpus
from benchmarks.common.rank import device_name
from scripts.shared.gpus import gpu_memory_bytes


class FakeCuda:
    """Stands for torch.cuda on a machine with these GPUs."""

    def __init__(self, capabilities, arch_list=("sm_75", "sm_80", "sm_90"), starts=True, memory=(), names=()):
        self.capabilities, self.arch_list, self.starts = capabilities, list(arch_list), starts
        self.memory, self.names = memory, names

    def is_available(self):
        return self.starts and bool(self.capabilities)

    def device_count(self):
        return len(self.capabilities)

    def get_device_capability(self, index):
        return self.capabilities[index]

    def get_device_name(self, index):
        return self.names[getattr(index, "index", index)] if self.names else f"GPU {index}"

    def get_device_properties(self, index):
        major, minor = self.capabilities[index]
        memory = self.memory[index] if self.memory else None
        return types.SimpleNamespace(total_memory=memory, major=major, minor=minor)

    def get_arch_list(self):
        return self.arch_list

    def init(self):
        raise RuntimeError("CUDA unknown error\nmore")


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    def make(cuda, visible=None, nodes=("nvidia0", "nvidia1")):
        dev = tmp_path / "dev"
        shutil.rmtree(dev, ignore_errors=True)
        dev.mkdir()
        for name in nodes:
            (dev / name).touch()
        monkeypatch.setattr(machine, "DEVICES", dev)
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    yield make
    torch.get_device_module.cache_clear()  # torch keeps the stand-in for the tests after this one


def test_usable_gpus_counts_those_that_run_kernels(gpu_machine, monkeypatch):
    gpu_machine(FakeCuda([(8, 0), (8, 6)]))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert usable_gpus() == 2
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # else energy is of other GPUs, where there are two kinds
    gpu_machine(FakeCuda([(8, 0)]), visible="1")
    assert usable_gpus() == 1
    gpu_machine(FakeCuda([(8, 0), (8, 6)]), visible="0,1,")  # CUDA's list ends at a name that is none
    assert usable_gpus() == 2
    for hidden in ("", "-1", " ", "-1,0"):
        gpu_machine(FakeCuda([(8, 0)]), visible=hidden)
        assert usable_gpus() == 0


@pytest.mark.parametrize(
    ("nodes", "has_tool", "is_there"),
    [((), True, False), (("dxg",), False, False), (("dxg",), True, True), (("nvidia0",), False, True)],
    ids=["login node", "another GPU in WSL", "WSL", "no nvidia-smi"],
)
def test_which_signs_are_an_nvidia_gpu(gpu_machine, tmp_path, monkeypatch, nodes, has_tool, is_there):
    """Protects login nodes, which have the tools without the hardware, and WSL, whose one node is of all makers."""
    put(tmp_path / "bin", **({"nvidia-smi": "true"} if has_tool else {}))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    gpu_machine(FakeCuda([], starts=False), nodes=nodes)
    if not is_there:
        assert usable_gpus() == 0
        return
    with pytest.raises(UserError, match=r"an NVIDIA GPU is here, but torch .* cannot use it"):
        usable_gpus()


@pytest.mark.parametrize(
    ("cuda", "visible", "sentence"),
    [
        (FakeCuda([(7, 0)]), None, r"no kernels for GPU 0 \(sm_70\); .*\./bench setup"),
        (FakeCuda([(9, 0), (7, 0)]), None, r"no kernels for GPU 1 \(sm_70\)"),
        (
            FakeCuda([(8, 0)], starts=False),
            None,
            r"cannot use it: CUDA unknown error; .*\./bench setup.*DEVICES= trains",
        ),
        (FakeCuda([(8, 0)], starts=False), "0", "cannot use it with CUDA_VISIBLE_DEVICES=0: CUDA unknown error"),
        (FakeCuda([(8, 0)]), "0,7", "0,7 names more than the 1 GPU"),
        (FakeCuda([(8, 0)]), "MIG-1f,MIG-8a-1b", "1b names more than the 1 GPU.*one MIG slice"),
    ],
)
def test_gpus_that_cannot_be_used_get_a_sentence(gpu_machine, cuda, visible, sentence):
    """Protects against training on CPUs under a GPU's name, and against a traceback at the first kernel."""
    gpu_machine(cuda, visible)
    with pytest.raises(UserError, match=sentence):
        usable_gpus()


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use a GPU here")
def test_torch_itself_says_why_it_cannot_use_a_gpu(gpu_machine):
    """Protects a GPU's owner whose pip chose a build for the CPU, or whose driver does not run."""
    gpu_machine(torch.cuda)
    words = "(Torch not compiled with CUDA enabled|Found no NVIDIA driver.*); `rm -rf .venv && ./bench setup` installs"
    with pytest.raises(UserError, match=f"cannot use it: {words}"):
        usable_gpus()


def test_the_smallest_of_the_gpus_that_are_used_counts(gpu_machine, monkeypatch):
    """Protects a small card beside a large one, and a MIG slice, whose memory is not the GPU's."""
    monkeypatch.delenv("NUM_GPUS", raising=False)
    monkeypatch.delenv("GPU_MEMORY_GB", raising=False)
    gpu_machine(FakeCuda([(9, 0), (8, 0)], memory=[85.0e9, 42.3e9]))
    assert gpu_memory_bytes(2) == 42.3e9 and gpu_memory_bytes(1) == 85.0e9
    gpu_machine(FakeCuda([], starts=False), visible="")
    assert gpu_memory_bytes(2) is None


def test_a_row_says_both_kinds_of_gpu(gpu_machine):
    """Protects a reader of V100 beside H100: every step waits for the slower one."""
    gpu_machine(FakeCuda([(9, 0), (7, 0), (9, 0)], names=["H100", "V100", "H100"]))
    assert device_name(torch.device("cuda", 0)) == "H100"
    assert device_name(torch.device("cuda", 0), num_used=3) == "H100 + V100"
    assert device_name(torch.device("cuda", 1)) == "V100"
