"""What a new user is told before anything is downloaded, on which machine, and which accelerators are refused.

.venv/bin/python -m pytest tests/setup/test_first_minute.py
"""

import dataclasses
import subprocess
import sys

import pytest
import torch
from support import ROOT

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.setup import builds, first_minute
from scripts.setup.first_minute import Machine, describe_machine, why_too_little_disk, why_unsupported

LAPTOP, APU, WORKSTATION = ("dri/renderD128",), ("dri/renderD128", "kfd"), ("dri/renderD128", "nvidia0", "nvidia1")
LINUX = Machine("Linux", "x86_64", "3.11.7", 66.4, "/usr/bin/g++", True, ())


@pytest.fixture
def make_devices(tmp_path):
    """Makes a folder with these device nodes, as files."""

    def make(names):
        for name in names:
            path = tmp_path / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / "dev"

    return make


@pytest.mark.parametrize(
    "system, processor, word",
    [
        ("Linux", "x86_64", ""),
        ("Linux", "aarch64", ""),
        ("Linux", "riscv64", "riscv64 are not supported"),
        ("Darwin", "arm64", "macOS is not supported"),
        ("Windows", "AMD64", "install WSL"),
        ("FreeBSD", "amd64", "FreeBSD is not supported"),
    ],
)
def test_linux_goes_on_and_others_get_a_sentence(system, processor, word):
    """Protects the first minute on a Mac, which ended in a traceback after all downloads. Mutant: Darwin left out."""
    why = why_unsupported(system, processor)
    assert (word in why and "\n" not in why) if word else why == ""


@pytest.mark.real_interpreter
def test_a_system_without_fcntl_gets_its_sentence():
    """Protects native Windows, where importing a lock fails: bench refuses before it imports anything of Linux."""
    code = (
        "import platform, sys; sys.modules['fcntl'] = sys.modules['pwd'] = None; platform.system = lambda: 'Windows'; "
        "import runpy; sys.argv[:] = ['bench', '--help']; runpy.run_path('bench', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: Windows is not supported"), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "devices, words",
    [
        ((), "no GPU: the suite runs on the CPU"),
        (LAPTOP, "/dev/dri/renderD128 is not an NVIDIA GPU"),
        (APU, "/dev/dri/renderD128 is not an NVIDIA GPU"),
        (WORKSTATION, "2 NVIDIA GPUs"),
        (("dxg",), "GPUs through WSL's /dev/dxg, if nvidia-smi lists one"),
    ],
)
def test_set_up_says_what_the_machine_is(devices, words, make_devices):
    folder = make_devices(devices)
    machine = first_minute.look_at_machine(ROOT, folder)
    assert machine.devices == devices and machine.python == sys.version.split()[0] and machine.free_gb > 0
    (line,) = describe_machine(Machine("Linux", "aarch64", "3.12.1", 66.4, "/usr/bin/g++", True, devices))
    assert line.startswith("Linux aarch64, Python 3.12.1, with g++; 66 GB free; ") and words in line


def test_a_python_without_venv_is_refused_in_one_line(monkeypatch, capsys, tmp_path):
    """Protects a fresh Ubuntu: venv's failure left an interpreter without pip, and no command worked after the remedy.
    Mutant: no check."""
    machine = dataclasses.replace(LINUX, has_venv=False)
    monkeypatch.setattr(first_minute, "look_at_machine", lambda root: machine)
    with pytest.raises(SystemExit) as stopped:
        first_minute.begin_set_up(tmp_path)
    assert stopped.value.code == 2 and "sudo apt install python3-venv" in capsys.readouterr().err


def test_a_login_node_is_told_which_torch_its_nodes_need():
    """Protects a queue of hours: the newest torch runs on no V100, and the login node has no GPU that says so."""
    login = dataclasses.replace(LINUX, has_slurm=True)
    _, line = describe_machine(login)
    newest, *_, oldest = builds.BUILDS
    assert f"needs driver {newest.driver}" in line and f"TORCH={oldest.torch} ./bench setup" in line
    assert len(describe_machine(dataclasses.replace(login, devices=WORKSTATION))) == 1


def test_a_disk_without_space_is_refused_before_the_download():
    """Protects hours of a slow network. Mutant: no look at the disk."""
    assert why_too_little_disk(60, "") == ""
    assert "needs about 7 GB" in why_too_little_disk(5, "") and "TORCH_INDEX" in why_too_little_disk(5, "")
    assert why_too_little_disk(5, "https://an.index") == ""
    assert "needs about 4 GB" in why_too_little_disk(1, "https://an.index")


@pytest.mark.parametrize("devices", [LAPTOP, APU])
def test_a_device_node_alone_goes_on_on_the_cpu(devices, make_devices, monkeypatch):
    """Protects laptops and APUs: one line, and no refusal. Mutant: a node counts as an accelerator."""
    folder = make_devices(devices)
    monkeypatch.setattr(machine, "DEVICES", folder)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.usable_gpus() == 0
    assert first_minute.unused_device_line(folder).startswith("note: /dev/dri/renderD128 is not an NVIDIA GPU")


@pytest.mark.parametrize(
    ("hip", "found", "words"), [("6.4.1", "cuda", "for ROCm"), (None, "xpu", "XPU"), (None, "mps", "MPS")]
)
def test_a_rank_asks_torch_where_a_device_is_there(make_devices, monkeypatch, hip, found, words):
    """Protects a user of ROCm, XPU or MPS from the CPU's figures under the GPU's name. Mutant: hip is not read."""
    folder = make_devices(APU)
    monkeypatch.setattr(machine, "DEVICES", folder)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(found))
    with pytest.raises(UserError, match=f"{words}, and the suite .*DEVICE=cpu trains on the CPU"):
        machine.usable_gpus()
    monkeypatch.setenv("DEVICE", "cpu")
    assert machine.usable_gpus() == 0 and builds.query_gpus().problem == "DEVICE=cpu asks for no GPU"
    monkeypatch.setenv("DEVICE", "tpu")
    with pytest.raises(UserError, match="DEVICE is 'tpu'"):
        machine.usable_gpus()
