"""Horovod and Apex, which are built from source: by ./bench setup, else when a run first needs one. Standard library
alone."""

import os
from collections.abc import Callable

from benchmarks.common.files import hold_lock
from scripts.shared.repository import ROOT

LIBRARIES = ("horovod", "apex")
VENV = ROOT / ".venv"


def library_of(strategy: str) -> str:
    word = strategy.partition("_")[0]
    return word if word in LIBRARIES else ""


def build_missing(library: str, python: str, run: Callable[..., int]) -> str:
    """Unless it failed before, or `python` is not set-up's. Returns why it is not there; '' where it is, or nobody has
    tried."""
    if os.environ.get("SETUP") == "no" or python != str(VENV / "bin/python"):
        return ""
    if is_installed(library):
        return ""
    failed = VENV / f"{library}.failed"
    with hold_lock(VENV / ".setup", limit_s=3600):
        if not is_installed(library) and not failed.exists():  # another process may have built it meanwhile
            run([ROOT / f"scripts/setup/{library}.sh"], cwd=ROOT, env=os.environ | {"PYTHON": python})
        return failed.read_text().strip() if failed.exists() else ""


def is_installed(library: str) -> bool:
    """By its folder: the interpreter that asks may be another one."""
    return any(VENV.glob(f"lib/python*/site-packages/{library}"))
