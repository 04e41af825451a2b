"""How many GPUs, cores, ranks and threads a run has: from environment variables, else from the machine.

Imports torch only where there may be GPUs and nobody has counted them.
"""

import contextlib
import hashlib
import itertools
import math
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.common.errors import Unavailable, UserError
from scripts.shared.commands import shell_word
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.repository import ROOT

PATTERNS = ("nvidia[0-9]*", "dxg", "kfd", "dri/renderD*", "accel/accel*")
"""Below /dev: NVIDIA's GPUs; those of Windows in WSL; AMD's compute driver; GPUs of all makers; other accelerators."""


def list_devices(folder: Path) -> list[str]:
    """Names below /dev of what may compute, such as nvidia0, kfd or dri/renderD128."""
    return sorted(str(path.relative_to(folder)) for pattern in PATTERNS for path in folder.glob(pattern))


def wants_cpu() -> bool:
    """Whether DEVICE=cpu asks for the CPU. Raises UserError for another value."""
    device = os.environ.get("DEVICE", "")
    if device not in ("", "cpu"):
        raise UserError(f"DEVICE is {device!r}, but must be cpu, or empty for the GPUs that are here")
    return device == "cpu"


def other_accelerator(torch: ModuleType | SimpleNamespace) -> str:
    """What torch has beside NVIDIA's GPUs: "a ROCm build (6.4)", "an XPU" or "MPS"; '' for nothing."""
    if hip := getattr(torch.version, "hip", None):
        return f"a ROCm build ({hip})"
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return "an XPU"
    if hasattr(torch.backends, "mps") and torch.backends.mps.is_available():
        return "MPS"
    return ""


def refuse_other_accelerator(torch: ModuleType | SimpleNamespace) -> None:
    """Raises UserError where torch has an accelerator that the suite does not use."""
    if found := other_accelerator(torch):
        raise UserError(
            f"torch {torch.__version__} has {found}, and the suite trains on NVIDIA GPUs and CPUs only; DEVICE=cpu "
            "trains on the CPU. launchers/README.md says what is believed to work on it, untested"
        )


NVIDIA_SMI_TIMEOUT_S = 20
DEVICES = Path("/dev")


@dataclass(frozen=True)
class TorchBuild:
    """A line of torch wheels on PyPI. capability: the oldest GPU with kernels; driver: the oldest that runs it."""

    lock: str
    versions: str
    cuda: int
    capability: tuple[int, int]
    driver: int
    machines: tuple[str, ...]

    @property
    def torch(self) -> str:
        """The version of torch in its lock."""
        return re.findall(r"^torch==(\S+)", (ROOT / self.lock).read_text(), re.MULTILINE)[0]


# From 2.11 on PyPI's torch is a CUDA 13 build, which has no Volta: pytorch issues 172352, 177975 and 190385, and the
# wheels' own requirements (nvidia-*-cu12 up to 2.10). Drivers: CUDA's compatibility guide, minor-version compatibility.
BUILDS = (
    TorchBuild("requirements.lock", "torch>=2.11", 13, (7, 5), 580, ("x86_64", "aarch64")),
    TorchBuild("requirements-torch2.10.lock", "torch<2.11", 12, (7, 0), 525, ("x86_64",)),
)


@dataclass(frozen=True)
class NvidiaSmiResult:
    """The output of nvidia-smi. gpus: (name, compute capability) of each, () for an unknown one. problem: why there is
    no output."""

    gpus: tuple[tuple[str, tuple[int, ...]], ...] = ()
    driver: str = ""
    problem: str = ""


def query_gpus() -> NvidiaSmiResult:
    """The GPUs and the driver of this machine, unless DEVICE=cpu or CUDA_VISIBLE_DEVICES hides all. Raises UserError
    for a wrong DEVICE."""
    if wants_cpu():
        return NvidiaSmiResult(problem="DEVICE=cpu asks for no GPU")
    visible = visible_devices()
    if visible == []:
        return NvidiaSmiResult(problem=f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} asks for no GPU")
    if not shutil.which("nvidia-smi"):
        return NvidiaSmiResult(problem="there is no nvidia-smi")
    found = _run_nvidia_smi("name,compute_cap,driver_version")
    # Drivers before 510 do not know compute_cap; every build here needs a newer one, which the version alone says.
    return _run_nvidia_smi("name,driver_version") if "compute_cap" in found.problem else found


def driver_version() -> str:
    """Of NVIDIA's driver, by NVML; '' where it does not say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # no library, no driver
        return ""


def visible_devices() -> list[str] | None:
    """The devices in CUDA_VISIBLE_DEVICES, up to a -1 or an empty name, which ends them; None where it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return [*itertools.takewhile(lambda name: name not in ("", "-1"), names)]  # a UUID may hold "-1", too


def _run_nvidia_smi(fields: str) -> NvidiaSmiResult:
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
            code = process.wait(NVIDIA_SMI_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: in a sick driver it cannot even be killed
            return NvidiaSmiResult(problem=f"nvidia-smi did not answer in {NVIDIA_SMI_TIMEOUT_S} s")
        except OSError as error:
            return NvidiaSmiResult(problem=f"nvidia-smi cannot be started ({error.strerror})")
        file.seek(0)
        output = file.read()
    if code:
        return NvidiaSmiResult(problem=f"nvidia-smi failed: {' '.join(output.split())[:120]}")
    rows = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    rows = [row for row in rows if len(row) == fields.count(",") + 1]
    if not rows:
        return NvidiaSmiResult(problem="nvidia-smi lists no GPU")
    return NvidiaSmiResult(tuple((row[0], _version(row[1]) if len(row) == 3 else ()) for row in rows), rows[0][-1])


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def choose_build(found: NvidiaSmiResult) -> tuple[TorchBuild, str]:
    """The newest build that runs on all GPUs, and the reason; without GPUs the newest of all.

    Raises UserError, with what to do, where no build fits.
    """
    if found.problem:
        return BUILDS[0], f"the newest, as {found.problem}"
    reason = ""
    for build in BUILDS:
        if why_not := _why_incompatible(build, found):
            reason = reason or why_not
        else:
            return build, reason or f"the newest; {_oldest_gpu(found)} and driver {found.driver} run it"
    raise UserError(
        f"no torch on PyPI that this suite knows runs here: {_why_incompatible(BUILDS[-1], found)}. Update the driver; "
        "for a GPU older than Volta give TORCH= and PIP_ARGS= of a build with its kernels, such as TORCH=2.14.1+cu126 "
        'PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cu126"; or CUDA_VISIBLE_DEVICES= for the CPU'
    )


def _why_incompatible(build: TorchBuild, found: NvidiaSmiResult) -> str:
    if platform.machine() not in build.machines:
        return f"CUDA {build.cuda} builds are not made for {platform.machine()}"
    for name, capability in found.gpus:
        if capability and capability < build.capability:
            return f"{name} ({_sm_name(capability)}) has no kernels in CUDA {build.cuda} builds"
    if _version(found.driver)[:1] < (build.driver,):
        return f"driver {found.driver} is older than {build.driver}, which CUDA {build.cuda} builds need"
    return ""


def _oldest_gpu(found: NvidiaSmiResult) -> str:
    name, capability = min(found.gpus, key=lambda gpu: gpu[1])
    return f"{name} ({_sm_name(capability)})"


def _sm_name(capability: tuple[int, ...]) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def usable_gpus() -> int:
    """How many GPUs torch can run kernels on here; 0 where there is none, or DEVICE or CUDA_VISIBLE_DEVICES hides all.

    Raises UserError where torch has an accelerator that is not NVIDIA's, and where there are GPUs that are not hidden,
    but torch cannot use them.
    """
    visible, named = os.environ.get("CUDA_VISIBLE_DEVICES"), visible_devices()
    hidden = wants_cpu() or named == []
    nodes = [path for path in DEVICES.iterdir() if re.fullmatch(r"nvidia(\d+|ctl)|dxg", path.name)]  # dxg: WSL
    if hidden:
        return 0
    if not (nodes or shutil.which("nvidia-smi")):
        if list_devices(DEVICES):  # of other makers
            import torch

            refuse_other_accelerator(torch)
        return 0
    # As NVML and nvidia-smi number GPUs. CUDA's own order is by speed: telemetry would be of others than those in use.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch

    if not torch.cuda.is_available():
        found = query_gpus()
        if not found.gpus and not any(path.name not in ("nvidiactl", "dxg") for path in nodes):
            return 0  # a login node: the tools without the hardware; or WSL with a GPU that is not NVIDIA's
        raise UserError(_why_unusable(torch, found, visible))
    num_gpus = torch.cuda.device_count()
    if named and len(named) > num_gpus:
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={visible} names {len(named)} GPUs, but {num_gpus} of them can be used; correct it "
            "(nvidia-smi -L lists them; a process can use one MIG slice), or leave it out"
        )
    for index in range(num_gpus):
        capability = torch.cuda.get_device_capability(index)
        if not has_kernels(torch.cuda.get_arch_list(), capability):
            name, found = torch.cuda.get_device_name(index), query_gpus()
            if found.problem:  # nvidia-smi is not there, and torch knows the GPU
                found = NvidiaSmiResult(((name, capability),), driver_version() or str(BUILDS[-1].driver))
            gpu = f"{name} ({_sm_name(capability)})"
            raise UserError(f"torch {torch.__version__} has no kernels for {gpu}; {_remedy(found)}")
    return num_gpus


def has_kernels(built_for: list[str], capability: tuple[int, ...]) -> bool:
    """Whether a GPU runs code built for `built_for` (torch.cuda.get_arch_list()): machine code of its own major version
    up to its minor one, or PTX."""
    for name in built_for:
        kind, _, digits = name.rstrip("af").partition("_")
        major, minor = int(digits[:-1]), int(digits[-1])
        newer = (major, minor) <= tuple(capability)
        if newer and (kind == "compute" or major == capability[0]):
            return True
    return False


def _why_unusable(torch: ModuleType, found: NvidiaSmiResult, visible: str | None) -> str:
    there = _oldest_gpu(found) if found.gpus else "an NVIDIA GPU"
    if not torch.version.cuda:
        return f"{there} is here, but torch {torch.__version__} is built without CUDA; {_remedy(found, reinstall=True)}"
    if _version(found.driver) and _version(found.driver)[0] < _needed_driver(torch.version.cuda):
        needs = f"torch {torch.__version__} (CUDA {torch.version.cuda})"
        return f"driver {found.driver} is too old for {needs}; {_remedy(found)}"
    if visible is not None:
        return f"CUDA_VISIBLE_DEVICES={visible} names no GPU that can be used; nvidia-smi -L lists them"
    try:
        torch.cuda.init()
        why = found.problem
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
    return f"{there} is here, but CUDA does not start: {why}. Mend the driver, or set CUDA_VISIBLE_DEVICES= for the CPU"


def _needed_driver(cuda: str) -> int:
    return next((build.driver for build in BUILDS if build.cuda == int(cuda.split(".")[0])), 0)


def _remedy(found: NvidiaSmiResult, reinstall: bool = False) -> str:
    """What to install instead, as one command. reinstall: pip would take 2.15.0+cpu for 2.15.0."""
    try:
        build, _ = choose_build(found)
    except UserError as error:
        return str(error)
    if Path(sys.prefix).resolve() == (ROOT / ".venv").resolve():
        command = f"{'rm -r .venv && ' * reinstall}TORCH={shell_word(build.torch)} ./bench setup"
    else:
        options = "--force-reinstall " * reinstall
        command = f"{shell_word(sys.executable)} -m pip install {options}'{build.versions}' torchvision"
    return f"{build.versions} fits: {command}; or CUDA_VISIBLE_DEVICES= for the CPU"


HASH_DIGITS = 12
BOARD_FILES = ("sys_vendor", "product_name", "board_vendor", "board_name", "board_version")  # without root's rights
VECTOR_FLAGS = re.compile(r"(avx|amx|sse|ssse|fma|f16c|bmi|vnni|sve|sme(?!p)|asimd|neon|bf16|i8mm)\w*")
"""Of /proc/cpuinfo: what kernels are chosen by. The other flags change with the Linux kernel."""
# How the names of variables begin that may change kernels, memory or communication.
PREFIXES = (
    *("OMP_", "GOMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "KMP_", "NCCL_", "GLOO_", "CUBLAS", "CUDNN_", "MALLOC_"),
    *("TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "TRITON_", "TCMALLOC_", "PYTORCH_TUNABLEOP_"),
    *("FI_", "OFI_", "UCX_"),  # of networks, by which NCCL's plugins send
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "NVIDIA_TF32_OVERRIDE", "GLIBC_TUNABLES"),
    # of these words, others say where something is, or how it was built: CUDA_HOME, HOROVOD_WITH_PYTORCH
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_FORCE_PTX_JIT", "CUDA_SCALE_LAUNCH_QUEUES"),
    *("CUDA_MPS_", "CUDA_INJECTION64_PATH", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEM"),
    *("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME", "HOROVOD_CACHE_CAPACITY", "HOROVOD_AUTOTUNE"),
    *("HOROVOD_HIERARCHICAL_ALLREDUCE", "HOROVOD_BATCH_D2D_MEMCOPIES", "HOROVOD_NUM_NCCL_STREAMS"),
)
# The launchers, or compiling.py and torch, set the first of these. The others say where something is.
NOT_RECORDED = (
    *("OMP_NUM_THREADS", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"),
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "TRITON_CACHE_DIR", "TRITON_HOME"),
    *("TORCH_HOME", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_DEBUG_FILE"),
)
LOOPBACK = {("GLOO_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_IFNAME", "lo")}  # what launchers choose on one machine
NONE = "none"
NCCL_CONF = Path("/etc/nccl.conf")


def machine_facts() -> dict[str, int | str]:
    """Cores that this process may use, vector flags (a hash), Linux kernel and host."""
    return {
        "num_cores": num_cores(),
        "cpu_flags": _hash(vector_flags()),
        "kernel": platform.release(),
        "host": host(os.environ),
    }


def vector_flags() -> list[str]:
    """The instructions for vectors that the processor offers, sorted; [] where Linux does not say."""
    words = next((line.partition(":")[2].split() for line in _cpuinfo() if line.startswith(("flags", "Features"))), [])
    return sorted(word for word in words if VECTOR_FLAGS.fullmatch(word))


def emulates_bf16(flags: Collection[str]) -> bool:
    """Whether oneDNN has no kernels in bf16 for an x86 processor with these vector_flags: it has some from AVX-512 and
    from AVX-NE-CONVERT on (oneDNN, "CPU Dispatcher Control")."""
    return "sse2" in flags and not {"avx512bw", "avx_ne_convert"} & set(flags)


def host(env: Mapping[str, str]) -> str:
    """A hash that names this machine; in a Slurm job of several nodes the one of all its nodes, by their names."""
    name = platform.node()
    if env.get("SLURM_JOB_NUM_NODES", "1") != "1" and env.get("SLURMD_NODENAME") == name.partition(".")[0]:
        return _hash(["nodes", env.get("SLURM_CLUSTER_NAME", ""), env.get("SLURM_JOB_NODELIST", "")])
    board = [_text(Path("/sys/class/dmi/id") / file) for file in BOARD_FILES]
    processor = [line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith(("model name", "microcode"))]
    return _hash([name, _text(Path("/etc/machine-id")), *board, *dict.fromkeys(processor)])


def processor_name() -> str:
    """What the vendor calls the processor."""
    names = (line.partition(":")[2].strip() for line in _cpuinfo() if line.startswith("model name"))
    return next(names, "CPU")


def kernel_variables(env: Mapping[str, str]) -> str:
    """The variables that may change kernels, memory or communication: "ATEN_CPU_CAPABILITY=avx2"; NONE without any.

    env: of the run's supervisor.
    """
    chosen = {name: text for name, text in env.items() if text and name.startswith(PREFIXES)}
    recorded = [item for item in sorted(chosen.items()) if item[0] not in NOT_RECORDED and item not in LOOPBACK]
    return " ".join(f"{name}={text}" for name, text in recorded) or NONE


def nccl_conf(env: Mapping[str, str]) -> str:
    """A hash of the files from which NCCL reads its variables; NONE without any: NCCL_CONF_FILE, or else ~/.nccl.conf,
    and /etc/nccl.conf (nccl/src/misc/param.cc, initEnvFunc)."""
    own = env.get("NCCL_CONF_FILE", "")
    if not own:
        with contextlib.suppress(KeyError):  # a user whom the system does not list
            own = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".nccl.conf")  # NCCL does not read HOME
    texts = [_text(Path(own)), _text(NCCL_CONF)]
    return f"#{_hash(texts)}" if any(texts) else NONE


def _cpuinfo() -> list[str]:
    return _text(Path("/proc/cpuinfo")).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _hash(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).hexdigest()[:HASH_DIGITS]


CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


def missing_compiler(on_gpu: bool) -> str:
    """Why nothing can be compiled here, and what to install; empty where it can. on_gpu: for GPUs, whose kernels Triton
    makes, which compiles its launchers from C (triton/runtime/build.py)."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        return "torch.compile needs a C++ compiler, and there is none; install g++, or name one in CXX"
    if on_gpu and not any(shutil.which(name) for name in (os.environ.get("CC", "gcc"), "gcc", "clang")):
        return "torch.compile on a GPU needs a C compiler, and there is none; install gcc, or name one in CC"
    if on_gpu and not find_spec("triton"):
        return "torch.compile on a GPU needs the package triton, and there is none; pip install triton"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers, and there are none; install python3-dev"
    return ""


def prepare_compiler(on_gpu: bool) -> None:
    """Call this before torch.compile: torch then compiles in as many processes as the rank has threads, unless the user
    chose a number.

    Raises Unavailable where nothing can be compiled, or, on a CPU, where a path has a blank, at which torch splits the
    compiler's command.
    """
    if why := missing_compiler(on_gpu) or ("" if on_gpu else _blank_in_a_path()):
        raise Unavailable(why)
    # torch takes up to 32 processes for each rank, whatever the number of ranks is
    threads = number_from_env("THREADS_PER_RANK", "a number of threads")
    if threads and COMPILE_THREADS not in os.environ:
        os.environ[COMPILE_THREADS] = str(threads)
        config: Any = sys.modules.get("torch._inductor.config")
        if config:
            config.compile_threads = threads


def _blank_in_a_path() -> str:
    """Which folder in a compiler's command for the CPU has a blank in its path, and what to do; empty where none has.

    torch._inductor.cpp_builder quotes no path: `g++ ... -o /home/a user/...` would end in a stack.
    """
    elsewhere = "install Python and the packages in another folder"
    for folder, remedy in (
        (os.environ.get(CACHE) or tempfile.gettempdir(), f"set {CACHE} to another"),
        (sysconfig.get_path("include"), elsewhere),
        (sysconfig.get_path("purelib"), elsewhere),
    ):
        if len(folder.split()) > 1:
            return f"torch.compile takes no path with a blank, and {folder!r} has one; {remedy}"
    return ""


HOST = re.compile(r"\w[\w.-]*:(?P<ranks>[1-9][0-9]{0,5})", re.ASCII)  # of HOSTS; a name with - in front is a flag
NEWEST_CAPABILITY = (9, 0)  # compute capability of GPUs that are not at hand, such as those of a cluster's nodes
MAX_DIGITS = 9  # more than any machine has of anything
CONTROL_GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def number_from_env(name: str, what: str, least: int = 1) -> int | None:
    """The whole number in environment variable `name`, None where it is not set.

    Raises UserError, which says that it must be `what`, for other text, and for more than MAX_DIGITS.
    """
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > MAX_DIGITS or int(text) < least:
        raise UserError(f"{option_as_typed(name)} is {text[:40]!r}, but must be {what}, {least} or more")
    return int(text)


def num_gpus() -> int:
    """NUM_GPUS, else those that torch can use. Raises UserError where there are some that it cannot."""
    number = number_from_env("NUM_GPUS", "a number of GPUs", least=0)
    return usable_gpus() if number is None else number


def min_compute_capability() -> tuple[int, int] | None:
    """The least compute capability of the GPUs of a run; None without GPUs. Of GPUs elsewhere the newest is assumed."""
    if not num_gpus() and os.environ.get("GPUS_PER_NODE", "0") == "0":
        return None
    return min(((gpu.major, gpu.minor) for gpu in _visible_gpus()), default=NEWEST_CAPABILITY)


def gpu_memory_bytes(num_used: int) -> float | None:
    """Memory of the smallest of the first num_used GPUs: GPU_MEMORY_GB (10^9 bytes), else as torch says; None where
    nobody knows."""
    if not num_gpus():
        return None
    if text := os.environ.get("GPU_MEMORY_GB", ""):
        with contextlib.suppress(ValueError):
            if 0 < float(text) < float("inf"):
                return float(text) * 1e9
        raise UserError(f"GPU_MEMORY_GB is {text!r}, but must be 10^9 bytes, such as 16.9 for a V100 of 16 GB")
    return min((gpu.total_memory for gpu in _visible_gpus()[:num_used]), default=None)


def gpu_names() -> str:
    """What the vendor calls the GPUs that torch can use, each kind once; '' without any."""
    return " + ".join(dict.fromkeys(gpu.name for gpu in _visible_gpus()))


def _visible_gpus() -> list:
    """torch's properties of each GPU that it can use. They make no CUDA context, which would take memory from runs."""
    with contextlib.suppress(UserError):
        if num_visible := usable_gpus():
            import torch

            return [torch.cuda.get_device_properties(index) for index in range(num_visible)]
    return []


def num_cores() -> int:
    """Cores that this process may run on, and no more than its container's quota of processor time comes to."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.floor(min(allowed, quota_cores())))


def quota_cores(folder: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP) -> float:
    """How many cores the quotas of this process's control groups come to, as `docker run --cpus` sets them; infinity
    without any. folder: where control groups are mounted, of version 2 or 1 (man 7 cgroups)."""
    return min(map(_quota_of_group, _control_groups("cpu", folder, membership)), default=math.inf)


def free_group_memory_bytes(folder: Path = CONTROL_GROUPS, membership: Path = MEMBERSHIP) -> float:
    """Memory that this process's control groups leave it, as Slurm's --mem limits it; infinity without a limit."""
    return min(map(_free_memory_of_group, _control_groups("memory", folder, membership)), default=math.inf)


def _control_groups(controller: str, folder: Path, membership: Path) -> list[Path]:
    """The folders of this process's control groups that may limit what the controller counts, and those around."""
    groups: list[Path] = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return groups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = folder / controllers
        group = top / path.strip("/")  # in a container this may be the host's path, and `top` is the container's group
        groups += [each for each in (group, *group.parents) if each.is_relative_to(top)]
    return groups


def _quota_of_group(group: Path) -> float:
    with contextlib.suppress(OSError, ValueError):
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        if quota not in ("max", "-1"):
            return int(quota) / int(period)
    return math.inf


def _free_memory_of_group(group: Path) -> float:
    """Bytes that the group's limit leaves. Pages of files that nobody has used lately count as free."""
    with contextlib.suppress(OSError, ValueError):
        if (group / "memory.max").exists():
            limit, used, dropped_first = group / "memory.max", group / "memory.current", "inactive_file"
        else:
            limit, used = group / "memory.limit_in_bytes", group / "memory.usage_in_bytes"
            dropped_first = "total_inactive_file"
        if (most := limit.read_text().strip()) != "max":  # version 1 without a limit has about 2^63
            return max(0, int(most) - int(used.read_text()) + _number_in(group / "memory.stat", dropped_first))
    return math.inf


def _number_in(path: Path, name: str) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{name} (\d+)$", path.read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def num_ranks() -> int:
    """Ranks on this machine: NPROC, else one a GPU, else 2."""
    return number_from_env("NPROC", "a number of ranks") or num_gpus() or 2


def threads_per_rank(ranks: int) -> int:
    """THREADS_PER_RANK, else an equal share of the cores: on a CPU one rank stands for one device."""
    return number_from_env("THREADS_PER_RANK", "a number of threads") or max(1, num_cores() // ranks)


def resolve_num_workers(requested: int | str, on_gpu: bool) -> int:
    """The loader workers of a rank. `auto`: with a GPU the rank's cores minus one, else 0, as the rank computes on
    them."""
    if requested != "auto":
        return int(requested)
    return max(1, threads_per_rank(num_ranks()) - 1) if on_gpu else 0


def node_rank() -> int:
    """NODE_RANK, this node's number among the NNODES nodes, from 0 on. Raises UserError."""
    num_nodes = number_from_env("NNODES", "a number of nodes") or 1
    node = number_from_env("NODE_RANK", "the number of this node, of which the first is 0", least=0) or 0
    if node >= num_nodes:
        raise UserError(f"NODE_RANK is {node}, but must be less than NNODES, which is {num_nodes}; the first node is 0")
    return node


def ranks_and_nodes(ranks_here: int) -> tuple[int, int]:
    """(ranks, nodes) in all, where every machine has `ranks_here`: of HOSTS, of a Slurm job's NODES, or of NNODES.
    Raises UserError."""
    if text := os.environ.get("HOSTS", ""):
        hosts = [match for host in text.split(",") if (match := HOST.fullmatch(host))]
        if len(hosts) != text.count(",") + 1:
            raise UserError(f"HOSTS is {text!r}, but must be hosts and their ranks, 1 or more each, such as a:4,b:4")
        return sum(int(host["ranks"]) for host in hosts), len(hosts)
    nodes, tasks = (
        number_from_env("NODES", "a number of nodes"),
        number_from_env("TASKS_PER_NODE", "a number of ranks a node"),
    )
    if nodes or tasks:
        return (nodes or 1) * tasks if tasks else ranks_here, nodes or 1
    nodes = number_from_env("NNODES", "a number of nodes") or 1
    return ranks_here * nodes, nodes
