"""Accelerators that are not NVIDIA's: the suite uses none of them, and says so instead of training on the CPU silently.
What counts is torch: a ROCm build, or one that reports an XPU or MPS. Needs the standard library alone."""

import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

from benchmarks.common.errors import UserError

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
