"""What torch.compile needs of the machine, and the folders from which any run takes compiled code. Needs no torch."""

import os
import shutil
import stat
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.common.system.errors import Unavailable, UserError
from benchmarks.common.system.files import home_folder
from benchmarks.common.system.folders_of_others import refuse_folder_of_others
from benchmarks.common.system.machine import number_from_env

CACHE, TRITON_CACHE = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
# Without --compile, too: of CUDA's driver, of torch's kernels that are made at run time, and of torch's C++ extensions.
OTHER_CACHES = ("CUDA_CACHE_PATH", "PYTORCH_KERNEL_CACHE_PATH", "TORCH_EXTENSIONS_DIR")
COMPILE_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
PRECOMPILE_HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"


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


def refuse_shared_compile_caches() -> None:
    """Call this in each rank, or before ranks are started: it makes the folders of OTHER_CACHES that the environment
    names. Their defaults are in the user's home. Raises UserError where one cannot be made, or where somebody else can
    write to it, or put another in its place."""
    for variable in OTHER_CACHES:
        if chosen := os.environ.get(variable):
            _make_checked(chosen, variable)


def prepare_compiler(on_gpu: bool) -> None:
    """Call this before torch.compile: it makes torch and Triton keep compiled code in folders that only this user can
    write to, and compile in as many processes as the rank has threads, unless the user chose a number.

    Raises Unavailable where nothing can be compiled, or, on a CPU, where a path has a blank, at which torch splits the
    compiler's command. Raises UserError where somebody else can write to one of these folders, or put another in its
    place.
    """
    if why := missing_compiler(on_gpu):
        raise Unavailable(why)
    use_own_caches()
    if not on_gpu and (why := _blank_in_a_path()):
        raise Unavailable(why)
    config: Any = sys.modules.get("torch._inductor.config")
    if config:
        config.cpp_cache_precompile_headers = False
    # torch takes up to 32 processes for each rank, whatever the number of ranks is
    threads = number_from_env("THREADS_PER_RANK", "a number of threads")
    if threads and COMPILE_THREADS not in os.environ:
        os.environ[COMPILE_THREADS] = str(threads)
        if config:
            config.compile_threads = threads


def _blank_in_a_path() -> str:
    """Which folder in a compiler's command for the CPU has a blank in its path, and what to do; empty where none has.

    torch._inductor.cpp_builder quotes no path: `g++ ... -o /home/a user/...` would end in a stack.
    """
    elsewhere = "install Python and the packages in another folder"
    for folder, remedy in (
        (os.environ[CACHE], f"set {CACHE} to another"),
        (sysconfig.get_path("include"), elsewhere),
        (sysconfig.get_path("purelib"), elsewhere),
    ):
        if len(folder.split()) > 1:
            return f"torch.compile takes no path with a blank, and {folder!r} has one; {remedy}"
    return ""


def use_own_caches() -> None:
    """Set the variables by which torch and Triton keep compiled code in folders that only this user can write to.

    Raises UserError where somebody else can write to one of these folders, or put another in its place.
    """
    if chosen := _chosen_by_user():
        _make_checked(chosen, CACHE)
    os.environ[CACHE] = chosen or str(private_cache())
    # Triton loads libraries from its own folder, which by default is below TRITON_HOME
    inside = os.path.join(os.environ[CACHE], "triton")
    if (chosen := os.environ.get(TRITON_CACHE) or inside) != inside:
        _make_checked(chosen, TRITON_CACHE)
    os.environ[TRITON_CACHE] = chosen
    # torch keeps these headers in /tmp/torchinductor_<user>, whatever CACHE says, and takes what lies there.
    os.environ[PRECOMPILE_HEADERS] = "0"


def _chosen_by_user() -> str:
    """The cache folder that the user chose; '' for none.

    When torchvision is imported, torch 2.15 sets the variable to its default folder. Anybody may have made that folder,
    so the default does not count as the user's choice, even if a parent process has passed it on. The parent may have
    had another TMPDIR, as before a Slurm job that has its own: a folder with torch's name counts only where nobody else
    could have made it.
    """
    folder = os.environ.get(CACHE, "")
    above, name = os.path.split(folder)
    if not name.startswith("torchinductor_"):
        return folder
    return "" if above == os.path.abspath(tempfile.gettempdir()) or _others_can_write(above) else folder


def _others_can_write(folder: str) -> bool:
    """Whether another user can make a file in the folder, or the folder itself."""
    try:
        refuse_folder_of_others(Path(folder), os.getuid(), "")
        status = os.stat(folder)
    except (OSError, UserError):
        return True
    return status.st_uid not in (0, os.getuid()) or bool(status.st_mode & 0o022)


def private_cache() -> Path:
    """A folder for torch.compile's cache that only this user can write to.

    It is below XDG_CACHE_HOME, else ~/.cache. A user who cannot write there gets a new folder in TMPDIR. By default
    torch takes /tmp/torchinductor_<user>, even if somebody else made it, and unpickles and runs what lies there. Raises
    UserError where somebody else can write to the folder, or put another in its place.
    """
    user_home = home_folder()
    cache = os.environ.get("XDG_CACHE_HOME") or (user_home / ".cache" if user_home else None)
    if not cache:
        return Path(tempfile.mkdtemp(prefix="torchinductor-"))
    folder = Path(cache, "imagenet-parallel-benchmarks-compiled")  # beside the indexes' folder, which the umask made
    try:
        for each in (Path(cache), folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a home that cannot be written, such as a container's
        return Path(tempfile.mkdtemp(prefix="torchinductor-"))
    _refuse_cache_of_others(folder, CACHE)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder}, from which a run takes compiled code, belongs to another user; set {CACHE}")
    return folder


def _make_checked(path: str, variable: str) -> None:
    """Make the folder of compiled code that `variable` names, where it is missing. Raises UserError where it cannot be
    made, or as _refuse_cache_of_others does."""
    folder = Path(path).absolute()
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_cache_of_others(folder, variable)
    except OSError as error:
        raise UserError(
            f"compiled code cannot be kept in {folder} ({error.strerror}); set {variable} to another"
        ) from None


def _refuse_cache_of_others(folder: Path, variable: str) -> None:
    """Raises UserError where somebody else, such as a member of its group, can write to the folder of compiled code, or
    put another in its place."""
    above = folder.parent
    remedy = f"a run would take compiled code from {folder}; set {variable} to another"
    refuse_folder_of_others(folder, os.getuid(), remedy)
    remedy = f"from which a run takes compiled code; take that right away (chmod go-w), or set {variable}"
    if above.stat().st_mode & stat.S_IWGRP and not above.stat().st_mode & stat.S_ISVTX:
        raise UserError(f"others can write to {above}, and put a folder of theirs in the place of that {remedy}")
    if folder.stat().st_mode & 0o022:
        raise UserError(f"others can write to {folder}, {remedy}")
