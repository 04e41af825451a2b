"""What torch.compile needs of the machine. Needs no torch.

from benchmarks.common.compiling import check_compiler, no_compiler
"""

import os
import shutil
import sysconfig
from pathlib import Path

from benchmarks.common.errors import Unavailable


def no_compiler() -> str:
    """Why nothing can be compiled here, and what to install; empty where it can."""
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        return "torch.compile needs a C++ compiler, and there is none; install g++, or name one in CXX"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python's headers, and there are none; install python3-dev"
    return ""


def check_compiler() -> None:
    """Raises Unavailable where nothing can be compiled."""
    if why := no_compiler():
        raise Unavailable(why)
