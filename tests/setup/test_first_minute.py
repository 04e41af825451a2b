"""What a new user is told before anything is downloaded, on which machine, and which accelerators are refused."""

import platform
import subprocess
import sys

import pytest
import torch
from support import ROOT

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from scripts.setup import builds, first_minute

LAPTOP, WORKSTATION = ("dri/renderD128", "kfd"), ("dri/renderD128", "nvidia0", "nvidia1")


@pytest.fixture
def make_devices(tmp_path, monkeypatch):
    """Makes the folder of device nodes have these, as files; nothing is on PATH."""

    def make(names):
        for name in names:
            path = tmp_path / "dev" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        monkeypatch.setattr(machine, "DEVICES", tmp_path / "dev")
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def test_another_processor_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SystemExit) as stopped:
        first_minute.refuse_machine()
    assert stopped.value.code == 2 and "riscv64 are not supported" in capsys.readouterr().err


@pytest.mark.real_interpreter
def test_a_system_without_fcntl_gets_its_sentence():
    """Such as Windows, where importing a lock fails: bench refuses before it imports anything of Linux."""
    code = (
        "import platform, sys; sys.modules['fcntl'] = sys.modules['pwd'] = None; platform.system = lambda: 'Windows'; "
        "import runpy; sys.argv[:] = ['bench', '--help']; runpy.run_path('bench', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: Windows is not supported"), done.stderr


@pytest.mark.parametrize(
    "devices, words",
    [
        (LAPTOP, "/dev/dri/renderD128 is not an NVIDIA GPU, and is not used: the suite runs on the CPU"),
        (WORKSTATION, "2 NVIDIA GPUs"),
        (("dxg",), "GPUs through WSL's /dev/dxg, if nvidia-smi lists one"),
    ],
)
def test_set_up_says_what_the_machine_is(devices, words, make_devices):
    """A device node alone, as on laptops, is no accelerator."""
    make_devices(devices)
    assert words in first_minute.describe_machine()[0]
    assert devices == WORKSTATION or machine.usable_gpus() == 0


def test_a_login_node_is_told_which_torch_its_nodes_need(make_devices, monkeypatch):
    """The newest torch runs on no V100, and the login node has no GPU that says so."""
    make_devices(())
    monkeypatch.setattr(first_minute.shutil, "which", lambda name: f"/usr/bin/{name}")
    newest, oldest = builds.BUILDS
    line = first_minute.describe_machine()[-1]
    assert f"needs driver {newest.driver}" in line and f"TORCH={oldest.torch} ./bench setup" in line


@pytest.mark.parametrize(("hip", "found", "words"), [("6.4.1", "cuda", "for ROCm"), (None, "xpu", "XPU")])
def test_another_accelerator_is_refused(make_devices, monkeypatch, hip, found, words):
    """It would get the CPU's figures under the GPU's name."""
    make_devices(LAPTOP)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device(found))
    with pytest.raises(UserError, match=f"{words}, and the suite .*DEVICE=cpu trains on the CPU"):
        machine.usable_gpus()
    monkeypatch.setenv("DEVICE", "cpu")
    assert machine.usable_gpus() == 0 and builds.query_gpus()[0] == []
