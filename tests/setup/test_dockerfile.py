"""The recipe of the image, read and followed up to the download. No image is built."""

import re
import shlex
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

pytestmark = pytest.mark.real_interpreter  # it imports from a folder that is not the checkout


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of the Dockerfile, continued lines as one."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def test_set_up_has_all_that_it_imports(tmp_path):
    """Up to the words of the installer."""
    for name, rest in instructions():
        *sources, target = shlex.split(rest) if name == "COPY" else [""]
        folder = tmp_path / target
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, folder)
    (command,) = [rest for name, rest in instructions() if name == "RUN" and "scripts.setup.install" in rest]
    module = re.search(r"python3 -m (\S+) /opt/venv", command)[1]
    code = f"import {module} as install; print(*install.choose_requirements('', True)[0])"
    env = environment(CUDA_VISIBLE_DEVICES="", PYTHONPATH=None)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "-r requirements.lock\n"), done.stderr
    assert (tmp_path / "requirements.lock").exists() and (tmp_path / "scripts/setup/uv.lock").exists()
