"""The recipe of the image, read and followed up to the download. No image is built."""

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

pytestmark = pytest.mark.real_interpreter  # it imports from a folder that is not the checkout


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of each instruction of the Dockerfile, continued lines as one."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through: its last line that fits the path, or a folder of it, counts."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [path, *(path[: found.start()] for found in re.finditer("/", path)), *path.split("/")]
        if line and not line.startswith("#") and any(fnmatch.fnmatchcase(name, pattern) for name in names):
            sent = line.startswith("!")
    return sent


def test_set_up_has_all_that_it_imports(tmp_path):
    """Protects the build from a new import of install.py, up to the words of the installer, and from a COPY of what was
    renamed, or of what .dockerignore keeps back."""
    for name, rest in instructions():
        *sources, target = shlex.split(rest) if name == "COPY" else [""]
        folder = tmp_path / target
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            assert is_sent(source.rstrip("/")), source
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


def test_nothing_private_is_sent_to_the_builder():
    """Protects secrets, and a build that would send a hundred GB of images."""
    private = ".git/config data/imagenet/train/x.JPEG results/latest/runs.csv .venv/bin/python .netrc id_rsa"
    assert not [path for path in private.split() if is_sent(path)]
