"""An interpreter of its own that sees all packages of this one, and a library built into it.

python -m scripts.gpu_check.overlay_environment .gpu-check/horovod scripts/setup/install_horovod.sh
"""

import os
import site
import sys
import venv
from pathlib import Path

import tyro

from benchmarks.common.files import write_text_atomically
from scripts.shared.programs import run_main_and_exit


def make(folder: Path) -> Path:
    python = folder / "bin/python"
    if not python.exists():
        venv.EnvBuilder(symlinks=True).create(folder)
    seen = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    if site.ENABLE_USER_SITE and Path(site.getusersitepackages()).is_dir():
        seen.append(site.getusersitepackages())
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    lines = [f"import site; site.addsitedir({path!r})" for path in dict.fromkeys(seen)]
    write_text_atomically(folder / "lib" / version / "site-packages" / "seen.pth", "\n".join(lines) + "\n")
    return python


def main(folder: Path, installer: Path, /) -> None:
    python = make(folder.absolute())
    os.execve(installer, [str(installer)], os.environ | {"PYTHON": str(python)})


if __name__ == "__main__":
    run_main_and_exit(lambda: tyro.cli(main, description=__doc__))
