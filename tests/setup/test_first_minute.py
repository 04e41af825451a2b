"""What a new user is told before anything is downloaded, on which machine, and which accelerators are refused.

.venv/bin/python -m pytest tests/setup/test_first_minute.py
"""

import platform
import subprocess
import sys
import types

import pytest
import torch
from support import ROOT

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.setup import builds, first_minute

LAPTOP, APU, WORKSTATION = ("dri/renderD128",), ("dri/renderD128", "kfd"), ("dri/renderD128", "nvidia0", "nvidia1")


@pytest.fixture
def make_devices(tmp_path, monkeypatch):
    """Makes the folder of device nodes have these, as files."""

    def make(names):
        for name in names:
            path = tmp_path / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        monkeypatch.setattr(machine, "DEVICES", tmp_path / "dev")
        return tmp_path / "dev"

    return make


@pytest.mark.parametrize(
    "system, processor, words",
    [
        ("Linux", "aarch64", ""),
        ("Linux", "riscv64", "riscv64 are not supported"),
        ("Darwin", "arm64", "macOS is not supported"),
        ("FreeBSD", "amd64", "FreeBSD is not supported"),
    ],
)
def test_linux_goes_on_and_others_get_a_sentence(system, processor, words, monkeypatch, capsys):
    """Protects the first minute on a Mac, which ended in a traceback after all downloads. Mutant: Darwin left out."""
    monkeypatch.setattr(first_minute.platform, "system", lambda: system)
    monkeypatch.setattr(first_minute.platform, "machine", lambda: processor)
    if not words:
        first_minute.refuse_machine()
        return
    with pytest.raises(SystemExit) as stopped:
        first_minute.refuse_machine()
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and words in said and said.count("\n") == 1


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
def test_set_up_says_what_the_machine_is(devices, words, make_devices, monkeypatch):
    make_devices(devices)
    monkeypatch.setattr(first_minute.shutil, "which", lambda name: None if name == "sinfo" else f"/usr/bin/{name}")
    line = first_minute.describe_machine()[0]
    assert line.startswith("Linux ") and f"Python {platform.python_version()}; {words}" in line


def test_a_python_without_venv_is_refused_in_one_line(monkeypatch, tmp_path):
    """Protects a fresh Ubuntu: venv's failure left an interpreter without pip, and no command worked after the remedy.
    Mutant: no check."""
    monkeypatch.setattr(first_minute.importlib.util, "find_spec", lambda name: None)
    assert "sudo apt install python3-venv" in first_minute.why_no_set_up(tmp_path)


def test_a_login_node_is_told_which_torch_its_nodes_need(make_devices, monkeypatch):
    """Protects a queue of hours: the newest torch runs on no V100, and the login node has no GPU that says so."""
    monkeypatch.setattr(first_minute.shutil, "which", lambda name: f"/usr/bin/{name}")
    newest, oldest = builds.BUILDS
    make_devices(())
    line = first_minute.describe_machine()[-1]
    assert f"needs driver {newest.driver}" in line and f"TORCH={oldest.torch} ./bench setup" in line
    make_devices(WORKSTATION)
    assert "jobs use" not in first_minute.describe_machine()[-1]


def test_a_disk_without_space_is_refused_before_the_download(monkeypatch, tmp_path):
    """Protects hours of a slow network. Mutant: no look at the disk."""
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(first_minute.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=5e9))
    assert "needs about 7 GB" in first_minute.why_no_set_up(tmp_path)
    monkeypatch.setenv("TORCH_INDEX", "https://an.index")  # of CPU builds
    assert first_minute.why_no_set_up(tmp_path) == ""


@pytest.mark.parametrize("devices", [LAPTOP, APU])
def test_a_device_node_alone_goes_on_on_the_cpu(devices, make_devices, monkeypatch):
    """Protects laptops and APUs: one line, and no refusal. Mutant: a node counts as an accelerator."""
    folder = make_devices(devices)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machine.usable_gpus() == 0
    assert first_minute.unused_device_line().startswith("note: /dev/dri/renderD128 is not an NVIDIA GPU")


@pytest.mark.parametrize(
    ("hip", "found", "words"), [("6.4.1", "cuda", "for ROCm"), (None, "xpu", "XPU"), (None, "mps", "MPS")]
)
def test_a_rank_asks_torch_where_a_device_is_there(make_devices, monkeypatch, hip, found, words):
    """Protects a user of ROCm, XPU or MPS from the CPU's figures under the GPU's name. Mutant: hip is not read."""
    folder = make_devices(APU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(found))
    with pytest.raises(UserError, match=f"{words}, and the suite .*DEVICE=cpu trains on the CPU"):
        machine.usable_gpus()
    monkeypatch.setenv("DEVICE", "cpu")
    assert machine.usable_gpus() == 0 and builds.query_gpus() == ([], "DEVICE=cpu asks for no GPU")
    monkeypatch.setenv("DEVICE", "tpu")
    with pytest.raises(UserError, match="DEVICE is 'tpu'"):
        machine.usable_gpus()
