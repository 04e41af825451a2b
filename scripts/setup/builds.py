"""Which line of torch's wheels this machine's GPUs and driver run. Standard library alone."""

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

NVIDIA_SMI = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
NVIDIA_SMI_TIMEOUT_S = 20
REMEDY = (
    "Update the driver; for a GPU older than Volta give TORCH= and PIP_ARGS= of a build with its kernels, such as "
    'TORCH=2.14.1+cu126 PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cu126"; or CUDA_VISIBLE_DEVICES= '
    "for the CPU"
)


@dataclass(frozen=True)
class Gpu:
    name: str
    capability: str
    """Such as 7.0; [N/A] where nobody knows."""
    driver: str

    def __str__(self) -> str:
        return f"{self.name} (sm_{self.capability.replace('.', '')})"


@dataclass(frozen=True)
class TorchBuild:
    """Wheels on PyPI. capability, driver: the oldest."""

    lock: str
    versions: str
    cuda: int
    capability: tuple[int, ...]
    driver: int
    processors: tuple[str, ...]

    @property
    def torch(self) -> str:
        return re.findall(r"^torch==(\S+)", (ROOT / self.lock).read_text(), re.MULTILINE)[0]

    def why_not(self, gpu: Gpu) -> str:
        """'' where it runs there."""
        if platform.machine() not in self.processors:
            return f"CUDA {self.cuda} builds are not made for {platform.machine()}"
        if () < _numbers(gpu.capability) < self.capability:
            return f"{gpu} has no kernels in CUDA {self.cuda} builds"
        if _numbers(gpu.driver) < (self.driver,):
            return f"driver {gpu.driver} is older than {self.driver}, which CUDA {self.cuda} builds need"
        return ""


# From 2.11 on PyPI's torch is a CUDA 13 build, which has no Volta: pytorch issues 172352, 177975 and 190385. Drivers:
# CUDA's compatibility guide, minor-version compatibility.
BUILDS = (
    TorchBuild("requirements.lock", "torch>=2.11", 13, (7, 5), 580, ("x86_64", "aarch64")),
    TorchBuild("requirements-torch2.10.lock", "torch<2.11", 12, (7, 0), 525, ("x86_64",)),
)


def choose_build() -> tuple[TorchBuild, str]:
    """And the reason. Raises UserError where none runs."""
    gpus, why_none = query_gpus()
    if not gpus:
        return BUILDS[0], f"the newest, as {why_none}"
    reasons: list[str] = []
    for build in BUILDS:
        refused = [why for gpu in gpus if (why := build.why_not(gpu))]
        if not refused:
            return build, reasons[0] if reasons else f"the newest; {gpus[0]} and driver {gpus[0].driver} run it"
        reasons.append(refused[0])
    raise UserError(f"no torch on PyPI that this suite knows runs here: {reasons[-1]}. {REMEDY}")


def query_gpus() -> tuple[list[Gpu], str]:
    """And why there are none. Raises UserError."""
    if wants_cpu():
        return [], "DEVICE=cpu asks for no GPU"
    if visible_devices() == []:
        return [], f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']} asks for no GPU"
    if not shutil.which("nvidia-smi"):
        return [], "there is no nvidia-smi"
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        process = subprocess.Popen(NVIDIA_SMI, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(NVIDIA_SMI_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()  # and not waited for: in a sick driver it may not end
            return [], f"nvidia-smi did not answer in {NVIDIA_SMI_TIMEOUT_S} s"
        file.seek(0)
        output = file.read()
    if "compute_cap" in output:
        raise UserError(f"this driver is older than 510, which first knew compute_cap. {REMEDY}")
    if code:
        return [], f"nvidia-smi failed: {' '.join(output.split())[:120]}"
    rows = [line.split(", ") for line in output.splitlines()]
    return [Gpu(*row) for row in rows if len(row) == 3], "nvidia-smi lists no GPU"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
