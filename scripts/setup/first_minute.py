"""What this machine is, said before anything is downloaded. The standard library, without what only Linux has."""

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


def refuse_machine() -> None:
    """Exits with 2 where the suite does not run."""
    system, processor = platform.system(), platform.machine()
    why = ""
    if system != "Linux":
        why = f"{system} is not supported; take a Linux machine, or in Windows WSL (wsl --install)"
    elif processor not in PROCESSORS:
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
