"""Makes a virtual environment with the torch that this machine's GPUs and driver can run. Standard library alone.

    python3 -m scripts.setup.install .venv       # ./bench setup does it; --help: this text
        TORCH=2.14.1    another torch than the one it would choose
        LOCK=no         the newest of everything, instead of the lock file's versions
        TORCH_INDEX=URL an index with another build of the same torch, such as that of CPU builds; without hashes
        PIP_ARGS="--no-index --find-links DIR"      options for pip, which then installs in place of uv

uv installs, in a fraction of pip's time; pip does where it has settings of its own, such as a mirror, or uv fails.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.files import replace_atomically
from scripts.setup.builds import BUILDS, choose_build, query_gpus
from scripts.shared.forward_signals import end_on_signals
from scripts.shared.repository import ROOT

RECORD_NAME = "installed-from"  # in the environment: the words that say what was installed
IGNORED_PIP_SETTINGS = {
    "default-timeout",
    "timeout",
    "disable-pip-version-check",
    "no-input",
    "progress-bar",
    "retries",
}


def main(venv: Path) -> None:
    torch, use_lock = os.environ.get("TORCH", ""), os.environ.get("LOCK", "yes") != "no"
    index = os.environ.get("TORCH_INDEX", "")
    words, why = choose_requirements(torch, use_lock and not index)
    why += f"; builds of {without_user(index)} where it has them" if index else ""
    print(f"setup: {' '.join(words)}: {why}", flush=True)
    if not all((venv / "bin" / name).exists() for name in ("python", "pip")):  # a try without python3-venv leaves one
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    started_s = time.monotonic()
    record = venv / RECORD_NAME
    record.unlink(missing_ok=True)
    installer = install(venv / "bin/python", words)
    replace_atomically(record, lambda file: file.write(f"{' '.join(words)}\n".encode()))
    print(f"setup: {installer} had the packages in place after {time.monotonic() - started_s:.0f} s", flush=True)


def choose_requirements(torch: str, use_lock: bool) -> tuple[list[str], str]:
    """The words that say what to install, and why. torch: a version, or empty. Raises UserError where no torch fits."""
    if torch:
        locks = [build.lock for build in BUILDS if f"{build.torch}.".startswith(f"{torch}.")]
        if locks and use_lock:
            return ["-r", locks[0]], f"TORCH={torch}"
        return ["-r", "requirements.txt", f"torch=={torch}"], f"TORCH={torch}, without a lock"
    build, why = choose_build(query_gpus())
    if use_lock:
        return ["-r", build.lock], f"torch {build.torch}: {why}"
    return ["-r", "requirements.txt", build.versions], f"{why}; without a lock"


def install(python: Path, words: list[str]) -> str:
    """Returns the name of what installed. Raises UserError where nothing could."""
    index = os.environ.get("TORCH_INDEX", "")
    if words[1].endswith(".lock"):  # no source either: its build would fetch what has no hash
        words = ["--require-hashes", "--only-binary", ":all:", *words]
    if not os.environ.get("PIP_ARGS") and not has_pip_settings(python) and get_uv(python):
        uv = [python, "-m", "uv", "pip", "install", "--quiet", "--no-config", "--python", python]
        # As pip: the best version of all indexes, not the first index that has the name.
        uv += ["--index-strategy", "unsafe-best-match"]
        if not run([*uv, *words], "uv installs", {"UV_INDEX": index} if index else {}):
            return "uv"
        print("setup: uv could not (above); pip tries", file=sys.stderr)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if index:
        pip += ["--extra-index-url", index]
    if run([*pip, *os.environ.get("PIP_ARGS", "").split(), *words], "pip installs"):
        raise UserError(f"pip could not install {' '.join(words)} (above); PIP_ARGS= takes the words for a mirror")
    return "pip"


def without_user(url: str) -> str:
    """The address without a user's name and password."""
    return re.sub(r"//[^/]*@", "//", url)


def has_pip_settings(python: Path) -> bool:
    """Whether pip has settings of its own (pip.conf, PIP_*), such as a mirror, which uv does not read."""
    listed = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    names = {line.partition("=")[0].rpartition(".")[2] for line in listed.stdout.splitlines() if "=" in line}
    return bool(names - IGNORED_PIP_SETTINGS)


def get_uv(python: Path) -> bool:
    """Whether uv is in the environment; pip brings it, by the lock's hashes."""
    lock = (ROOT / BUILDS[0].lock).read_text()
    requirement = re.search(r"^uv\b.*\n(    --hash=.*\n)*", lock, re.MULTILINE)
    if requirement is None:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirement[0])
        file.flush()
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # No source: its build would fetch what has no hash.
        return not run([*pip, "--require-hashes", "--only-binary", ":all:", "-r", file.name], "pip fetches uv")


def run(command: list, task: str, variables: dict[str, str] | None = None) -> int:
    """The exit code. A terminal sees how long it takes."""
    started_s = time.monotonic()
    with subprocess.Popen([str(word) for word in command], cwd=ROOT, env=os.environ | (variables or {})) as process:
        while True:
            try:
                return process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                if sys.stderr.isatty():
                    print(f"\r\033[K{task}, {time.monotonic() - started_s:.0f} s\r", end="", file=sys.stderr)
            except BaseException:
                process.terminate()
                raise


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        sys.exit(sys.argv[1:] not in (["-h"], ["--help"]))
    end_on_signals()
    try:
        main(Path(sys.argv[1]))
    except (UserError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"error: {error}")
