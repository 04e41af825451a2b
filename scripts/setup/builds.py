"""Which line of torch's wheels this machine's GPUs and driver run: what set-up installs. Standard library alone."""

import os
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

from benchmarks.common.errors import UserError
from benchmarks.common.machine import visible_devices, wants_cpu
from scripts.shared.repository import ROOT

NVIDIA_SMI_TIMEOUT_S = 20


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
    reason, (name, capability) = "", min(found.gpus, key=lambda gpu: gpu[1])
    for build in BUILDS:
        if why_not := _why_incompatible(build, found):
            reason = reason or why_not
        else:
            return build, reason or f"the newest; {name} ({_sm_name(capability)}) and driver {found.driver} run it"
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


def _sm_name(capability: tuple[int, ...]) -> str:
    return f"sm_{capability[0]}{capability[1]}"
