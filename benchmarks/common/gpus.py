"""Which GPUs this interpreter can use, and which build of torch fits the GPUs of this machine.

usable_gpus()                # for launchers, plan and scripts; 0 on a machine without GPUs
choose_build(query_gpus())   # for set-up, before anything is installed

Needs the standard library alone. Imports torch only where there are signs of an NVIDIA driver.
"""

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from benchmarks.common.accelerators import list_devices, refuse_other_accelerator, wants_cpu
from benchmarks.common.errors import UserError
from scripts.shared.commands import shell_word
from scripts.shared.repository import ROOT

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
