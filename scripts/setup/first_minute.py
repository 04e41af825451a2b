"""What this machine is, said before anything is downloaded. The standard library, without what only Linux has."""

import importlib.util
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from benchmarks.common import machine
from scripts.setup.builds import BUILDS

PROCESSORS = ("x86_64", "aarch64")
WSL = "dxg"
"""The device node of GPUs in WSL, which has no /dev/nvidia0."""
OTHER_SYSTEMS = {
    "Darwin": "macOS is not supported: take a Linux machine, or a Linux virtual machine for a try on the CPU",
    "Windows": "Windows is not supported; install WSL (wsl --install), and type the same there",
}
NEEDED_GB, NEEDED_CPU_GB = 7.0, 4.0
"""Of .venv: it had 6.0 GB with PyPI's torch 2.15.0 for x86-64, of which 3.1 GB were NVIDIA's libraries."""


def refuse_machine() -> None:
    """Exits with 2 where the suite does not run."""
    system, processor = platform.system(), platform.machine()
    why = "" if system == "Linux" else OTHER_SYSTEMS.get(system, f"{system} is not supported; take a Linux machine")
    if system == "Linux" and processor not in PROCESSORS:
        why = f"processors of the kind {processor} are not supported: torch's wheels are for {' and '.join(PROCESSORS)}"
    if why:
        print(f"error: {why}", file=sys.stderr)
        sys.exit(2)


def describe_machine() -> list[str]:
    found = {"g++": shutil.which("g++"), "Python.h": Path(sysconfig.get_path("include"), "Python.h").exists()}
    missing = [name for name, there in found.items() if not there]
    lines = [f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; {describe_devices()}"]
    if missing:
        lines += [f"no {' and '.join(missing)}: horovod_ddp will be skipped; Debian: apt install g++ make python3-dev"]
    if shutil.which("sinfo") and not any(name.startswith("nvidia") for name in machine.list_devices()):
        newest, oldest = BUILDS[0], BUILDS[-1]
        capability = ".".join(map(str, newest.capability))
        lines.append(
            f"jobs use the GPUs of their nodes. torch {newest.torch} needs driver {newest.driver} and compute "
            f"capability {capability} there; for older ones: TORCH={oldest.torch} ./bench setup"
        )
    return lines


def describe_devices() -> str:
    """Laptops have a node of their display."""
    devices = machine.list_devices()
    if num_nvidia := sum(name.startswith("nvidia") for name in devices):
        return f"{num_nvidia} NVIDIA GPU{'s' * (num_nvidia > 1)}"
    if WSL in devices:
        return f"GPUs through WSL's /dev/{WSL}, if nvidia-smi lists one"
    if devices:
        return f"/dev/{devices[0]} is not an NVIDIA GPU, and is not used: the suite runs on the CPU"
    return "no GPU: the suite runs on the CPU"


def unused_device_line() -> str:
    line = describe_devices()
    return f"note: {line}" if "is not used" in line else ""


def why_no_set_up(venv: Path) -> str:
    """'' where set-up would end."""
    if importlib.util.find_spec("ensurepip") is None:
        return (
            "python3 cannot make virtual environments here; Debian and Ubuntu: sudo apt install python3-venv, then the "
            "same command again"
        )
    cpu_builds = os.environ.get("TORCH_INDEX", "")
    needed, free_gb = NEEDED_CPU_GB if cpu_builds else NEEDED_GB, shutil.disk_usage(venv).free / 1e9
    if free_gb >= needed or (venv / "pyvenv.cfg").exists():
        return ""
    smaller = "" if cpu_builds else "; a CPU build of torch needs less: TORCH_INDEX in docs/several-machines.md"
    return f"set-up needs about {needed:g} GB in {venv}, and {free_gb:.1f} GB are free; free space{smaller}"
