"""This machine. NPROC, THREADS_PER_RANK, DEVICE and a launcher's NUM_GPUS come before what is found. torch is imported
only where there are signs of a GPU."""

import contextlib
import hashlib
import itertools
import math
import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from benchmarks.common.errors import Unavailable, UserError

DEVICES = Path("/dev")
PATTERNS = ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*", "accel/accel*")
"""Below /dev: NVIDIA's GPUs; those of Windows in WSL; AMD's; all makers' GPUs; other accelerators."""
REMEDY = "`rm -rf .venv && ./bench setup` installs the build that fits, CUDA_VISIBLE_DEVICES= trains on the CPU"
CONTROL_GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
VECTOR_FLAGS = re.compile(r"(avx|amx|sse|ssse|fma|f16c|bmi|vnni|sve|sme(?!p)|asimd|neon|bf16|i8mm)\w*")
"""By which kernels are chosen. Other flags change with Linux."""
BOARD_FILES = ("sys_vendor", "product_name", "board_vendor", "board_name", "board_version")  # without root's rights
HASH_DIGITS = 12


def number_from_env(name: str, what: str, least: int = 1) -> int | None:
    """None where it is not set. Raises UserError."""
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise UserError(f"{name} is {text!r}, but must be {what}, {least} or more")
    return int(text)


def num_gpus() -> int:
    """NUM_GPUS, else usable_gpus()."""
    number = number_from_env("NUM_GPUS", "a number of GPUs", least=0)
    return usable_gpus() if number is None else number


def num_ranks() -> int:
    """Here: NPROC, else one a GPU, else the tasks a node of a Slurm job, else 2."""
    tasks = number_from_env("SLURM_NTASKS_PER_NODE", "a number of ranks a node")
    return number_from_env("NPROC", "a number of ranks") or num_gpus() or tasks or 2


def threads_per_rank(ranks: int) -> int:
    """THREADS_PER_RANK, else an equal share of the cores."""
    return number_from_env("THREADS_PER_RANK", "a number of threads") or max(1, num_cores() // ranks)


def resolve_num_workers(requested: int | str, on_gpu: bool) -> int:
    if requested != "auto":
        return int(requested)
    return max(1, threads_per_rank(num_ranks()) - 1) if on_gpu else 0


def num_cores() -> int:
    """That this process may run on, within its container's quota."""
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota_cores())))


def quota_cores() -> float:
    """Infinity without a quota."""
    return min(map(_quota_of_group, control_groups("cpu")), default=math.inf)


def control_groups(controller: str) -> list[Path]:
    """Of this process, and those around, of version 2 or 1 (man 7 cgroups)."""
    groups: list[Path] = []
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            top = CONTROL_GROUPS / controllers
            group = top / path.strip("/")  # in a container this may be the host's path, and top its group
            groups += [each for each in (group, *group.parents) if each.is_relative_to(top)]
    return groups


def _quota_of_group(group: Path) -> float:
    if (group / "cpu.max").exists():
        quota, period = _text(group / "cpu.max").split()
    else:
        quota, period = (_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return int(quota) / int(period) if quota not in ("", "max", "-1") else math.inf


def list_devices() -> list[str]:
    """Below /dev, such as nvidia0, kfd or dri/renderD128."""
    return sorted(str(path.relative_to(DEVICES)) for pattern in PATTERNS for path in DEVICES.glob(pattern))


def wants_cpu() -> bool:
    """Raises UserError for another DEVICE than cpu."""
    device = os.environ.get("DEVICE", "")
    if device not in ("", "cpu"):
        raise UserError(f"DEVICE is {device!r}, but must be cpu, or empty for the GPUs that are here")
    return device == "cpu"


def visible_devices() -> list[str] | None:
    """Of CUDA_VISIBLE_DEVICES; None where it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return [*itertools.takewhile(lambda name: name not in ("", "-1"), names)]  # CUDA's list ends there


def usable_gpus() -> int:
    """Raises UserError where torch cannot use an NVIDIA GPU that is there, or is built for other makers'."""
    named, nodes, has_tool = visible_devices(), list_devices(), bool(shutil.which("nvidia-smi"))
    if wants_cpu() or named == [] or not (nodes or has_tool):
        return 0
    # As NVML numbers GPUs, for telemetry. CUDA's own order is by speed.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch

    build, found = f"torch {torch.__version__}", torch.accelerator.current_accelerator(check_available=True)
    if torch.version.hip or (found and found.type != "cuda"):
        raise UserError(
            f"{build} is built for {'ROCm' if torch.version.hip or not found else found.type.upper()}, and the suite "
            "uses NVIDIA GPUs and CPUs only; DEVICE=cpu trains on the CPU"
        )
    if not torch.cuda.is_available():
        # nvidia-smi alone: a login node. dxg alone: another maker's GPU in WSL.
        if not any(node.startswith("nvidia") or (node == "dxg" and has_tool) for node in nodes):
            return 0
        setting = "" if named is None else f" with CUDA_VISIBLE_DEVICES={','.join(named)}"
        raise UserError(f"an NVIDIA GPU is here, but {build} cannot use it{setting}: {_why_no_cuda()}; {REMEDY}")
    number = torch.cuda.device_count()
    if len(named or ()) > number:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={','.join(named or ())} names more than the {number} GPUs that can be used; "
            "nvidia-smi -L lists them, and a process can use one MIG slice"
        )
    for index in range(number):
        capability = torch.cuda.get_device_capability(index)
        if not has_kernels(torch.cuda.get_arch_list(), capability):
            name = f"{torch.cuda.get_device_name(index)} (sm_{capability[0]}{capability[1]})"
            raise UserError(f"{build} has no kernels for {name}; {REMEDY}")
    return number


def _why_no_cuda() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:  # an old driver; a build without CUDA
        return str(error).splitlines()[0]
    return "CUDA does not start"


def has_kernels(built_for: list[str], capability: tuple[int, int]) -> bool:
    """Machine code (sm_) runs on its own major version from its minor one on, PTX (compute_) on all later ones."""
    for name in built_for:
        kind, _, digits = name.rstrip("af").partition("_")
        version = int(digits[:-1]), int(digits[-1])
        if version <= capability and (kind == "compute" or version[0] == capability[0]):
            return True
    return False


def missing_compiler(on_gpu: bool) -> str:
    """'' where nothing is missing, if torch finds a C++ compiler. Triton compiles from C (triton/runtime/build.py)."""
    named = os.environ.get("CC")
    if on_gpu and not any(map(shutil.which, [named] if named else ["gcc", "clang"])):
        return f"torch.compile on a GPU needs a C compiler, and there is no {named or 'gcc'}; install gcc, or unset CC"
    if on_gpu and not find_spec("triton"):
        return "torch.compile on a GPU needs triton; pip install triton"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers; install python3-dev"
    return ""


def prepare_compiler(on_gpu: bool) -> None:
    """In as many processes as the rank has threads. Raises Unavailable where nothing can be compiled."""
    if why := missing_compiler(on_gpu):
        raise Unavailable(why)
    import torch
    import torch._inductor.config as inductor
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except RuntimeError:  # InvalidCxxCompiler
        named = os.environ.get("CXX") or "g++"
        raise Unavailable(f"torch.compile needs C++, and {named} does not start; install g++, or unset CXX") from None
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:  # torch takes up to 32 for each rank
        inductor.compile_threads = torch.get_num_threads()


def machine_facts() -> dict[str, int | str]:
    """What separates runs."""
    return {
        "num_cores": num_cores(),
        "cpu_flags": _hash(vector_flags()),
        "kernel": platform.release(),
        "host": host(os.environ),
    }


def host(env: Mapping[str, str]) -> str:
    """A hash; in a Slurm job of several nodes, of all."""
    name = platform.node()
    if env.get("SLURM_JOB_NUM_NODES", "1") != "1" and env.get("SLURMD_NODENAME") == name.partition(".")[0]:
        return _hash(["nodes", env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_NODELIST", "")])
    board = [_text(Path("/sys/class/dmi/id") / file) for file in BOARD_FILES]
    return _hash([name, _text(Path("/etc/machine-id")), *board, *dict.fromkeys(_cpuinfo("model name", "microcode"))])


def vector_flags() -> list[str]:
    flags = next(_cpuinfo("flags", "Features"), "")
    return sorted(flag for flag in flags.split() if VECTOR_FLAGS.fullmatch(flag))


def processor_name() -> str:
    return next(_cpuinfo("model name"), "CPU")


def driver_version() -> str:
    """'' where NVML does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no library, no driver
        return ""


def _cpuinfo(*names: str) -> Iterator[str]:
    lines = _text(Path("/proc/cpuinfo")).splitlines()
    return (line.partition(":")[2].strip() for line in lines if line.startswith(names))


def boot_id() -> str:
    return _text(Path("/proc/sys/kernel/random/boot_id"))


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""


def _hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]
