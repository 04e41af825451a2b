"""gpu-check on a machine without a network: what carry.py's file does there. Standard library alone.

    OUTPUT=state.tar python3 gpu-check.pyz [flags of scripts.gpu_check.run]

The interpreter must have torch and torchvision. What else is missing comes from the file. OUTPUT= holds all state: it
is written whole after each check, and a call that finds it, on this machine or another, goes on from it. WORK=: the
folder to work in, which stays, and in which each such file has a folder of its own; default: a temporary one. Exit
codes: those of gpu-check; 2, too, where it cannot begin.
"""

import os
import sys

# Modules of the current folder, and of folders beside it, would go before the standard library's. An empty part of
# PYTHONPATH is the current folder. With PYTHONSAFEPATH it may be the first.
if __name__ == "__main__":
    relative = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if not os.path.isabs(part)]
    left_out = {os.path.realpath(part) for part in ["", *relative]}
    sys.path[:] = [folder for folder in sys.path if os.path.realpath(folder) not in left_out]
    sys.pycache_prefix = None  # PYTHONPYCACHEPREFIX may name another user's folder, whose compiled modules would run
    os.environ.pop("PYTHONPYCACHEPREFIX", None)

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import shutil
import signal
import stat
import subprocess
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

STATE = ("results/gpu-check", "results/gpu-check-dry")
LOOK_S = 5.0
NEEDED = ("torch", "torchvision")


class CannotBegin(Exception):
    """What is wrong, and what to do."""


def main(bundle: Path, arguments: list[str]) -> int:
    """bundle: the file. arguments: flags of scripts.gpu_check.run. Returns the exit code."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return 0
    made = ""
    os.umask(os.umask(0o077) | 0o002)
    try:
        output = check_machine()
        work = make_own(Path(os.environ.get("WORK", "") or (made := tempfile.mkdtemp(prefix="gpu-check-"))))
        tree, packages = unpack(bundle, work)
        moved = restore(output, tree)
        return run(tree, packages, output, [*arguments, *(["--moved"] if moved else [])])
    except CannotBegin as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)


def check_machine() -> Path:
    """OUTPUT=, absolute. Raises CannotBegin without it or torch, where another user could replace its folder, and where
    tarfile cannot refuse unsafe members."""
    if not os.environ.get("OUTPUT"):
        raise CannotBegin("OUTPUT= must name the file that holds its state, such as OUTPUT=$HOME/gpu-check-state.tar")
    if not hasattr(tarfile, "data_filter"):
        raise CannotBegin(f"Python {sys.version.split()[0]} is too old; use 3.11.4 or newer, with torch")
    for name in NEEDED:
        if importlib.util.find_spec(name) is None:
            raise CannotBegin(f"{sys.executable} has no {name}; use the interpreter that has it")
    output = Path(os.environ["OUTPUT"]).absolute()
    output = output.parent.resolve() / output.name  # another user may turn a link elsewhere after the look
    for folder in output.parents:
        status = folder.stat()
        is_replaceable = bool(status.st_mode & 0o002) and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid(), os.stat("/").st_uid) or is_replaceable:
            raise CannotBegin(f"another user could replace {folder}, and OUTPUT= is written there; choose another")
    return output


def make_own(folder: Path) -> Path:
    """The folder, made where it is missing, without links in its path.

    Raises CannotBegin where others can write to it or put another in its place: what lies in it is run. Raises it for a
    colon in the path, too, which PYTHONPATH takes for two folders.
    """
    folder = folder.absolute()
    work = folder.parent.resolve() / folder.name
    if os.pathsep in str(work):  # it would be two folders of PYTHONPATH
        raise CannotBegin(f"{work} has a {os.pathsep} in it; choose another WORK=")
    owners = {os.getuid(), os.stat("/").st_uid}  # in a container root may have another number
    for path in (*reversed(work.parents), work):  # from the top: what lies in a folder that passed stays what it is
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise CannotBegin(f"{path} is no folder but a link; choose another WORK=")
        if path == work:
            owned, kept_by_owner = status.st_uid == os.getuid(), False
        else:
            owned, kept_by_owner = status.st_uid in owners, bool(status.st_mode & stat.S_ISVTX)
        if not owned or (status.st_mode & 0o022 and not kept_by_owner):
            raise CannotBegin(f"others can write to {path}, and what lies in it is run; choose another WORK=")
    return work


def unpack(bundle: Path, work: Path) -> tuple[Path, Path]:
    """(tree, packages) under `work`, in a folder named by the bundle's SHA-256: the checkout, and a folder of the
    packages that this interpreter lacks."""
    with open(bundle, "rb") as packed:
        own = work / hashlib.file_digest(packed, "sha256").hexdigest()[:16]
    tree, packages = own / "tree", own / "packages"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    with zipfile.ZipFile(bundle) as file, tempfile.TemporaryDirectory() as wheels:
        if not tree.exists():
            with tempfile.TemporaryDirectory(dir=own) as new:
                with file.open("tree.tar") as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
                    tar.extractall(Path(new, "tree"), filter="data")
                os.rename(Path(new, "tree"), tree)
        carried = json.loads(file.read("wheels.json"))
        missing = [wheel for name, wheel in carried.items() if not is_installed(name, packages)]
        for wheel in missing:
            file.extract(f"wheels/{wheel}", wheels)
        if missing:
            print(f"gpu-check: {len(missing)} packages that are missing here go to {packages}", flush=True)
            install([str(Path(wheels, "wheels", wheel)) for wheel in missing], packages)
    return tree, packages


def is_installed(name: str, packages: Path) -> bool:
    """Whether this interpreter has a distribution, or an earlier call has put it into `packages`."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        importlib.metadata.distribution(name)
        return True
    return any(importlib.metadata.distributions(name=name, path=[str(packages)]))


def install(wheels: list[str], packages: Path) -> None:
    """Raises CannotBegin where pip refuses, as it does a wheel of another Python."""
    words = ["--no-index", "--no-deps", "--disable-pip-version-check", "--quiet", "--target", str(packages)]
    # Not in the folder in which the user typed the command: Python would run a pip that lies there, with -P, too, where
    # PYTHONPATH has an empty part.
    pip = [sys.executable, "-P", "-m", "pip", "install", *words]
    done = subprocess.run([*pip, *wheels], capture_output=True, text=True, cwd=packages.parent)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["pip said nothing"]
        raise CannotBegin(f"pip cannot install what is missing: {lines[-1]}; pack again with --python of this machine")


def restore(output: Path, tree: Path) -> bool:
    """Put the state of an earlier call in place, if any; what that made outside of its set is made again."""
    if not output.exists():
        return False
    try:
        # whose it is, is asked of the open file: another user could swap it between the question and the opening
        with open_state(output) as file, tempfile.TemporaryDirectory(prefix="gpu-check-state-") as empty:
            with tarfile.open(fileobj=file, mode="r:") as tar:
                members = tar.getmembers()
                if strange := [member.name for member in members if not is_state(member)]:
                    raise CannotBegin(f"{output} holds {strange[0]!r}, which no state has; choose another OUTPUT=")
                tar.extractall(empty, filter="data", members=members)
            for folder in STATE:
                if Path(empty, folder).is_dir():
                    shutil.copytree(Path(empty, folder), tree / folder, dirs_exist_ok=True)
    except (tarfile.TarError, OSError, ValueError) as error:
        raise CannotBegin(f"{output} cannot be read ({error}); choose another OUTPUT=") from None
    for folder in STATE:
        again = ["build-*"] if (tree / "data/imagenet-mini").is_dir() else ["build-*", "data"]
        for pattern in again:
            for path in (tree / folder / "checks").glob(f"{pattern}.json"):
                path.unlink()
    print(f"gpu-check: goes on from {output}", flush=True)
    return True


def open_state(output: Path) -> BinaryIO:
    """The state for reading. Raises CannotBegin where it belongs to another user, and OSError."""
    file = os.fdopen(os.open(output, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # a pipe is not waited for
    status = os.fstat(file.fileno())
    if {output.lstat().st_uid, status.st_uid} - {0, os.geteuid()}:
        file.close()
        raise CannotBegin(f"{output} belongs to another user; choose another OUTPUT=")
    return file


def is_state(member: tarfile.TarInfo) -> bool:
    """Whether a member is a plain file or a folder of a set, and its name leads nowhere else."""
    inside = any(member.name == folder or member.name.startswith(f"{folder}/") for folder in STATE)
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE) and not member.issparse()
    return inside and plain and ".." not in member.name.split("/")


def run(tree: Path, packages: Path, output: Path, arguments: list[str]) -> int:
    """gpu-check, and after each of its checks the state in `output`."""
    path = os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")]))
    env = os.environ | {"PYTHONPATH": path, "PYTHON": sys.executable}
    for name in ("RESULTS", "OUTPUT", "WORK", "PYTHONSAFEPATH"):  # with it Python does not look for scripts/ in `tree`
        env.pop(name, None)
    child = subprocess.Popen([sys.executable, "-m", "scripts.gpu_check.run", *arguments], cwd=tree, env=env)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda number, frame: child.send_signal(number))
    kept: list[str] = []
    while child.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(LOOK_S)
        ended = sorted(str(path) for folder in STATE for path in (tree / folder).glob("checks/*.json"))
        if ended != kept:
            kept = ended
            keep(tree, output)
    keep(tree, output)
    print(f"gpu-check: its state is {output}", flush=True)
    return child.returncode


def keep(tree: Path, output: Path) -> None:
    """Write the state, whole or not at all."""
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as file:
        try:
            with tarfile.open(fileobj=file, mode="w") as tar:
                for folder in STATE:
                    if (tree / folder).exists():
                        tar.add(tree / folder, folder, filter=only_files)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, output)
        except BaseException:
            os.unlink(file.name)
            raise


def only_files(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Runs that are at work have pipes and locks beside their files."""
    return member if member.isfile() or member.isdir() else None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]), sys.argv[1:]))
