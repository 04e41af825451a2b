"""What this machine is, said before anything is downloaded. The standard library alone, and nothing that only Linux
has."""

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.machine import list_devices
from scripts.setup.builds import BUILDS
from scripts.shared.commands import shell_word

MACHINES = ("x86_64", "aarch64")
WSL = "dxg"
"""The device node of Windows' GPUs in WSL, which has no /dev/nvidia0."""
NO_VENV = "Debian and Ubuntu: sudo apt install python3-venv, then the same command again"
NEEDED_GB, NEEDED_CPU_GB = 7.0, 4.0
"""Of set-up: its .venv had 6.0 GB with PyPI's torch (2.15.0, x86-64), of which 3.1 GB were NVIDIA's libraries."""


@dataclass(frozen=True)
class Machine:
    """free_gb: where .venv will be. compiler: its path, or ''. has_headers: Python.h. devices: names in /dev, such
    as nvidia0. has_venv: this Python can make virtual environments."""

    system: str
    processor: str
    python: str
    free_gb: float
    compiler: str
    has_headers: bool
    devices: tuple[str, ...]
    has_venv: bool = True
    has_slurm: bool = False


def look_at_machine(root: Path, devices: Path = Path("/dev")) -> Machine:
    """This machine. root: the checkout. devices: the folder of device nodes."""
    include = Path(sys.base_prefix, "include", f"python{sys.version_info.major}.{sys.version_info.minor}", "Python.h")
    return Machine(
        platform.system(),
        platform.machine(),
        platform.python_version(),
        shutil.disk_usage(root).free / 1e9,
        shutil.which("g++") or "",
        include.exists(),
        tuple(list_devices(devices)),
        importlib.util.find_spec("ensurepip") is not None,  # Debian has it in a package of its own
        shutil.which("sinfo") is not None,
    )


def why_unsupported(system: str, processor: str) -> str:
    """'' where the suite runs."""
    if system == "Darwin":
        return (
            "macOS is not supported: the suite needs Linux's cores, locks and process groups, and does not use MPS; "
            "take a Linux machine, or a Linux virtual machine for a try on the CPU"
        )
    if system == "Windows":
        return "Windows is not supported; install WSL (wsl --install), and type the same there"
    if system != "Linux":
        return f"{system} is not supported; take a Linux machine"
    if processor not in MACHINES:
        return f"processors of the kind {processor} are not supported: torch's wheels are for {' and '.join(MACHINES)}"
    return ""


def why_too_little_disk(free_gb: float, torch_index: str) -> str:
    """'' where there is space. torch_index: the variable TORCH_INDEX."""
    needed = NEEDED_CPU_GB if torch_index else NEEDED_GB
    if free_gb >= needed:
        return ""
    smaller = "" if torch_index else "; a CPU build of torch needs less: TORCH_INDEX in launchers/README.md"
    return f"set-up needs about {needed:g} GB here, and {free_gb:.1f} GB are free; free space{smaller}"


def describe_machine(machine: Machine) -> list[str]:
    """Lines for the user before the first download."""
    missing = [name for name, there in (("g++", machine.compiler), ("Python.h", machine.has_headers)) if not there]
    tools = f"without {' and '.join(missing)}" if missing else "with g++"
    system = f"{machine.system} {machine.processor}, Python {machine.python}"
    lines = [f"{system}, {tools}; {machine.free_gb:.0f} GB free; {describe_devices(machine.devices)}"]
    if missing:
        lines.append("Horovod cannot be built, and its strategy will be skipped; Debian: apt install g++ python3-dev")
    if machine.has_slurm and not any(name.startswith("nvidia") for name in machine.devices):
        newest, oldest = BUILDS[0], BUILDS[-1]
        sm = ".".join(map(str, newest.capability))
        lines.append(
            f"jobs use the GPUs of their nodes. torch {newest.torch} needs driver {newest.driver} and compute "
            f"capability {sm} there; for older ones: TORCH={shell_word(oldest.torch)} ./bench setup"
        )
    return lines


def describe_devices(devices: tuple[str, ...]) -> str:
    """A node alone shows no GPU that computes: laptops have one of their display."""
    nvidia = [name for name in devices if name.startswith("nvidia")]
    if nvidia:
        return f"{len(nvidia)} NVIDIA GPU{'s' * (len(nvidia) > 1)}"
    if WSL in devices:
        return f"GPUs through WSL's /dev/{WSL}, if nvidia-smi lists one"
    if devices:
        return f"/dev/{devices[0]} is not an NVIDIA GPU, and is not used: the suite runs on the CPU"
    return "no GPU: the suite runs on the CPU"


def unused_device_line(devices: Path = Path("/dev")) -> str:
    """For the beginning of runs on the CPU; '' where there is none. devices: /dev."""
    found = list_devices(devices)
    if WSL in found or any(name.startswith("nvidia") for name in found):
        return ""
    return f"note: {describe_devices(tuple(found))}" if found else ""


def refuse_machine() -> None:
    """Exits with 2 where the suite does not run."""
    if why := why_unsupported(platform.system(), platform.machine()):
        print(f"error: {why}", file=sys.stderr)
        sys.exit(2)


def begin_set_up(root: Path) -> None:
    """Say what this machine is; exits with 2 where set-up would not end."""
    machine = look_at_machine(root)
    for line in describe_machine(machine):
        print(f"setup: {line}", file=sys.stderr, flush=True)
    is_first = not (root / ".venv/bin/python").exists()
    if not machine.has_venv:
        print(f"error: python3 cannot make virtual environments here; {NO_VENV}", file=sys.stderr)
        sys.exit(2)
    if is_first and (why := why_too_little_disk(machine.free_gb, os.environ.get("TORCH_INDEX", ""))):
        print(f"error: {why}", file=sys.stderr)
        sys.exit(2)
