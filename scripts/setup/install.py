"""Makes a virtual environment with the torch that this machine's GPUs and driver can run. Standard library alone.

    python3 -m scripts.setup.install .venv       # ./bench setup does it; --help: this text
        TORCH=2.14.1    another torch than the one it would choose
        TORCH_INDEX=URL an index with another build of the same torch, such as that of CPU builds; without hashes
        PIP_ARGS="--no-index --find-links DIR"      options for pip, which then installs in place of uv

uv installs, in a fraction of pip's time; pip does where uv fails, as it does not read pip's settings of a mirror.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, write_text_atomically
from scripts.setup.builds import BUILDS, choose_build
from scripts.setup.first_minute import describe_machine
from scripts.setup.libraries import LIBRARIES
from scripts.shared.forward_signals import die_with_parent, end_on_signals
from scripts.shared.repository import ROOT

SOURCES = ("requirements.txt", *(build.lock for build in BUILDS))
READY, LOCK_FILE = ".ready", ".setup"  # in the environment
UV_LOCK = "scripts/setup/uv.lock"


def install(venv: Path = ROOT / ".venv", *, again: bool = False) -> None:
    """Make the environment, unless it is current. again: TORCH and TORCH_INDEX choose anew. Raises UserError."""
    chosen = again and (os.environ.get("TORCH") or os.environ.get("TORCH_INDEX"))
    if not chosen and is_current(venv):
        return
    venv.mkdir(parents=True, exist_ok=True)
    with hold_lock(venv / LOCK_FILE, limit_s=3600):
        if chosen or not is_current(venv):  # another process may have made it meanwhile
            make(venv)


def is_current(venv: Path) -> bool:
    try:
        return (venv / READY).read_text() == hash_of_lists() and has_its_interpreter(venv)
    except OSError:
        return False


def hash_of_lists() -> str:
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in SOURCES)).hexdigest()


def has_its_interpreter(venv: Path) -> bool:
    """An upgrade may put another version behind its name, which sees none of the packages."""
    python = (venv / "bin/python").resolve()
    with contextlib.suppress(OSError):
        made_with = f"executable = {python}" in (venv / "pyvenv.cfg").read_text().splitlines()
        return made_with and python.exists() and (venv / "bin/pip").exists()
    return False


def make(venv: Path) -> None:
    for line in describe_machine():
        print(f"setup: {line}", file=sys.stderr)
    if importlib.util.find_spec("ensurepip") is None:
        raise UserError(
            "python3 cannot make virtual environments here; Debian and Ubuntu: sudo apt install python3-venv, then the "
            "same command again"
        )
    index = os.environ.get("TORCH_INDEX", "")
    words, why = choose_requirements(os.environ.get("TORCH", ""), use_lock=not index)
    print(f"setup: {' '.join(words)}: {why}; a minute or two, some GB", file=sys.stderr)
    (venv / READY).unlink(missing_ok=True)
    if not has_its_interpreter(venv):
        clear(venv)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    started_s, torch_before = time.monotonic(), torch_in(venv)
    install_packages(venv / "bin/python", words, index)
    if torch_in(venv) != torch_before:  # for which these were built
        uninstall = ["-m", "pip", "uninstall", "--yes", *LIBRARIES]
        subprocess.run([venv / "bin/python", *uninstall], check=True, capture_output=True)
    for library in LIBRARIES:
        (venv / f"{library}.failed").unlink(missing_ok=True)
    write_text_atomically(venv / READY, hash_of_lists())
    print(f"setup: the packages are in place after {time.monotonic() - started_s:.0f} s", file=sys.stderr)


def torch_in(venv: Path) -> list[Path]:
    """Such as torch-2.15.0.dist-info."""
    return [*venv.glob("lib/python*/site-packages/torch-*.dist-info")]


def clear(venv: Path) -> None:
    """All but the lock, which this process holds."""
    for path in venv.iterdir() if (venv / "pyvenv.cfg").exists() else ():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != LOCK_FILE:
            path.unlink()


def choose_requirements(torch: str, use_lock: bool) -> tuple[list[str], str]:
    """Words of an installer, and why. torch: a version, or empty. Raises UserError."""
    if torch:
        locked = [build for build in BUILDS if f"{build.torch}.".startswith(f"{torch}.")] if use_lock else []
        return ["-r", locked[0].lock] if locked else ["-r", "requirements.txt", f"torch=={torch}"], f"TORCH={torch}"
    build, why = choose_build()
    return ["-r", build.lock] if use_lock else ["-r", "requirements.txt", build.versions], why


def install_packages(python: Path, words: list[str], index: str) -> None:
    """index: beside PyPI; '' for none. Raises UserError."""
    # no source either: its build would fetch what has no hash
    by_hash = ["--require-hashes", "--only-binary", ":all:"]
    words = [*by_hash, *words] if words[1].endswith(".lock") else words
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = os.environ.get("PIP_ARGS", "").split()
    if not options:
        # As pip: the best version of all indexes, not the first index that has the name.
        uv = [python, "-m", "uv", "pip", "install", "--quiet", "--no-config", "--index-strategy", "unsafe-best-match"]
        env = os.environ | ({"UV_INDEX": index} if index else {})
        fetched = run([*pip, "--no-deps", *by_hash, "-r", UV_LOCK], "pip fetches uv") == 0
        if fetched and not run([*uv, "--python", python, *words], "uv installs", env=env):
            return
        print("setup: uv could not (above); pip tries", file=sys.stderr)
    if index:
        options = ["--extra-index-url", index, *options]
    if run([*pip, *options, *words], "pip installs"):
        raise UserError(f"pip could not install {' '.join(words)} (above); PIP_ARGS= takes the words for a mirror")


def run(command: list, task: str = "", **popen: Any) -> int:
    """Returns the exit code. A terminal sees how long the task takes."""
    started_s, words = time.monotonic(), [str(word) for word in command]
    with subprocess.Popen(words, preexec_fn=die_with_parent(), **{"cwd": ROOT} | popen) as process:
        while True:
            try:
                return process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if task and sys.stderr.isatty():
                    print(f"\r\033[K{task}, {time.monotonic() - started_s:.0f} s\r", end="", file=sys.stderr)
            except BaseException:
                process.terminate()
                raise


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    end_on_signals()
    try:
        install(Path(sys.argv[1]).absolute(), again=True)
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
