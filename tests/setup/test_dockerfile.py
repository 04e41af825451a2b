"""The recipe of the image, read and followed up to the download. No image is built.

.venv/bin/python -m pytest tests/setup/test_dockerfile.py
"""

import fnmatch
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

pytestmark = pytest.mark.real_interpreter  # it imports from a folder that is not the checkout

IGNORED = (ROOT / ".dockerignore").read_text().splitlines()


def instructions() -> list[tuple[str, str]]:
    """(instruction, the rest) of each instruction of the Dockerfile, continued lines as one."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()]


def copied() -> list[tuple[list[str], str]]:
    """(sources, target folder) of each COPY."""
    found = [shlex.split(rest) for name, rest in instructions() if name == "COPY"]
    return [(words[:-1], words[-1]) for words in found]


def is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path through: its last line that fits the path, or a folder of it, counts."""
    sent = True
    for line in IGNORED:
        pattern = line.removeprefix("!").removeprefix("**/")
        names = [path, *(path[: found.start()] for found in re.finditer("/", path)), *path.split("/")]
        if line and not line.startswith("#") and any(fnmatch.fnmatchcase(name, pattern) for name in names):
            sent = line.startswith("!")
    return sent


@pytest.fixture
def build_folder(tmp_path):
    """What the image has in its folder of set-up before the first package."""
    for sources, target in copied():
        folder = tmp_path / target
        folder.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, folder, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, folder)
    return tmp_path


def test_what_is_copied_is_there_and_sent_to_the_builder():
    """Protects the build: a COPY of what was renamed, or of what .dockerignore keeps back, ends it."""
    sources = [source for files, _ in copied() for source in files]
    assert len(sources) >= 8
    for source in sources:
        assert (ROOT / source).exists(), source
        assert is_sent(source.rstrip("/")), source


@pytest.mark.parametrize(
    "path",
    [".git/config", "data/imagenet/train/x.JPEG", "results/latest/runs.csv", ".venv/bin/python", ".netrc", "id_rsa"],
)
def test_nothing_private_is_sent_to_the_builder(path):
    """Protects secrets, and a build that would send a hundred GB of images. Mutant: .dockerignore without its `*`."""
    assert not is_sent(path)


def test_set_up_has_all_that_it_imports(build_folder):
    """Protects the build from a new import of install.py, up to the words of the installer. Mutant: a COPY less."""
    (command,) = [rest for name, rest in instructions() if name == "RUN" and "scripts.setup.install" in rest]
    module = re.search(r"python3 -m (\S+) /opt/venv", command)[1]
    code = f"import {module} as install; print(*install.choose_requirements('', True)[0])"
    env = environment(CUDA_VISIBLE_DEVICES="", PYTHONPATH=None)
    done = subprocess.run([sys.executable, "-c", code], cwd=build_folder, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "-r requirements.lock\n"), done.stderr
    assert (build_folder / "requirements.lock").exists() and (build_folder / "scripts/setup/uv.lock").exists()


def test_a_container_sees_gpus_and_infiniband():
    """Protects runs by pyxis, whose hooks read these variables of the image, from ranks without GPUs, and NCCL from
    Ethernet. Mutant: a variable less."""
    variables = " ".join(rest for name, rest in instructions() if name == "ENV").split()
    assert {"NVIDIA_VISIBLE_DEVICES=all", "MELLANOX_VISIBLE_DEVICES=all"} <= set(variables)
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in variables
    assert all(f" {package} " in (ROOT / "Dockerfile").read_text() for package in ("libibverbs1", "ibverbs-providers"))
