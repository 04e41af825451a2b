"""What torch.compile needs of the machine. Needs no torch."""

import os
import shutil
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common.errors import Unavailable
from benchmarks.common.machine import number_from_env

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
