"""What torch.compile needs of the machine. Needs no torch.

from benchmarks.common.compiling import check_compiler, no_compiler
"""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from benchmarks.common.errors import Unavailable


def no_compiler(on_gpu: bool) -> str:
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


def check_compiler(on_gpu: bool) -> None:
    """Raises Unavailable where nothing can be compiled."""
    if why := no_compiler(on_gpu):
        raise Unavailable(why)
