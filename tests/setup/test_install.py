"""What set-up installs on which machine, up to the words of the install command, and when it does so anew. Stand-ins
print what nvidia-smi does, and note what the new environment's interpreter is asked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import ROOT, put

from scripts.setup import install
from scripts.setup.builds import BUILDS

pytestmark = pytest.mark.real_interpreter  # interpreters of other environments

V100, H100 = "Tesla V100-PCIE-16GB, 7.0", "NVIDIA H100 80GB HBM3, 9.0"
NEWEST, VOLTA = "-r requirements.lock", "-r requirements-torch2.10.lock"
MACHINES = {  # what nvidia-smi prints, and what is installed, and a word of why
    "V100": (f"echo '{V100}, 580.65.06'", VOLTA, r"V100.*sm_70"),
    "H100": (f"echo '{H100}, 590.44.01'", NEWEST, r"H100.*sm_90"),
    "H100 with an older driver": (f"echo '{H100}, 535.183.01'", VOLTA, "535.183.01 is older than 580"),
    "hangs": ("sleep 60", NEWEST, "did not answer"),
    "a driver without compute_cap": ("echo 'Field \"compute_cap\" is not valid.'; exit 2", None, "older than 510"),
    "P100": ("echo 'Tesla P100-PCIE-16GB, 6.0, 580.65.06'", None, r"P100-PCIE-16GB \(sm_60\) has no kernels"),
}


@pytest.fixture
def computer(tmp_path, monkeypatch):
    """Makes nvidia-smi a shell script."""

    def make(script: str) -> None:
        monkeypatch.setenv("PATH", f"{tmp_path}/a bin:/usr/bin:/bin")
        put(tmp_path / "a bin", **{"nvidia-smi": script})

    return make


def installed(folder: Path, **variables) -> tuple[str, list[str]]:
    """What set-up says, and the installing command lines."""
    venv, record = folder / "a venv", folder / "record"
    (venv / "bin").mkdir(parents=True)
    lines = [f'case $4 in install) echo "${{UV_INDEX:+UV_INDEX=$UV_INDEX }}$*" >>"{record}";; esac']
    lines += [f'case $3 in install) echo "$*" >>"{record}";; esac']
    put(venv / "bin", python="\n".join(lines), pip="exit 1")
    (venv / "pyvenv.cfg").write_text(f"executable = {venv}/bin/python\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    code = "import platform, sys; platform.machine = lambda: 'x86_64'; "
    code += "from scripts.setup import builds; builds.NVIDIA_SMI_TIMEOUT_S = 1; "
    code += "import runpy; sys.argv[:] = ['install', sys.argv[1]]; "
    code += "runpy.run_module('scripts.setup.install', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, venv], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr, record.read_text().splitlines() if record.exists() else []


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_gets_a_torch_that_it_can_run(computer, tmp_path, name):
    script, words, why = MACHINES[name]
    computer(script)
    output, commands = installed(tmp_path)
    assert re.search(why, output) and "Traceback" not in output, output
    if words is None:
        assert commands == [] and output.rstrip().endswith("or CUDA_VISIBLE_DEVICES= for the CPU")
    else:
        assert commands[-1].startswith("-m uv pip install") and commands[-1].endswith(words)
        # uv takes a package without a hash without a word, and a source's build fetches what no lock knows
        assert len(commands) == 2 and all("--require-hashes --only-binary :all:" in command for command in commands)


BY_PIP = "-m pip install --quiet --disable-pip-version-check"
INDEX = "https://an.index/cpu"
ASKED = {
    "TORCH of a lock": ({"TORCH": "2.10"}, f"-m uv .* {VOLTA}"),
    "another TORCH": ({"TORCH": "2.1"}, r"-m uv .* -r requirements.txt torch==2\.1"),  # not 2.10
    "PIP_ARGS": (
        {"PIP_ARGS": "--no-index --find-links /wheels"},
        f"{BY_PIP} --no-index --find-links /wheels --require-hashes --only-binary :all: {VOLTA}",
    ),
    "another index": ({"TORCH_INDEX": INDEX}, f"UV_INDEX={INDEX} -m uv (?!.*hashes).* -r requirements.txt torch<2.11"),
    "no GPU": ({"CUDA_VISIBLE_DEVICES": "-1"}, f"-m uv .* {NEWEST}"),  # any torch will do
}


@pytest.mark.parametrize("case", ASKED)
def test_users_choose_by_variables(computer, tmp_path, case):
    """Another index has other builds of torch, and no hashes of PyPI's."""
    computer(f"echo '{V100}, 550.54.15'")
    variables, expected = ASKED[case]
    output, commands = installed(tmp_path, **variables)
    assert re.fullmatch(expected, commands[-1]), output


@pytest.fixture
def environment_of_old(tmp_path):
    """A current environment, whose interpreter is `python3`, a link to `python3.11`, as Debian has it."""
    for name in ("python3.11", "python3.12"):
        (tmp_path / name).touch()
    (tmp_path / "python3").symlink_to("python3.11")
    venv = tmp_path / "venv"
    put(venv, **{"leftover": ""})
    put(venv / "bin", pip="")
    (venv / "bin/python").symlink_to(tmp_path / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {tmp_path}\nexecutable = {tmp_path / 'python3.11'}\n")
    (venv / install.READY).write_text(install.hash_of_lists())
    assert install.is_current(venv)
    return venv


@pytest.mark.launches
def test_a_set_up_of_another_interpreter_is_made_anew(environment_of_old, tmp_path, monkeypatch):
    """After an upgrade of Python, or where another module is loaded."""
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").symlink_to("python3.12")
    assert not install.is_current(environment_of_old)
    (tmp_path / "python3.12").unlink()
    monkeypatch.setattr(install, "install_packages", lambda *words: None)
    install.install(environment_of_old)
    assert install.is_current(environment_of_old) and not (environment_of_old / "leftover").exists()


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.lock)
def test_a_lock_has_all_requirements_with_hashes_and_a_torch_of_its_line(build):
    """Its CUDA is the one that drivers are checked for."""
    text = (ROOT / build.lock).read_text()
    blocks = re.findall(r"^(\S.*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    assert len(blocks) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    locked = {}
    for requirement in (Requirement(line) for line, _ in blocks):
        name = requirement.name.replace("_", "-").lower()
        locked.setdefault(name, []).append(str(requirement.specifier)[2:])
    expected = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    for requirement in map(Requirement, [*expected, build.versions]):
        versions = locked[requirement.name.lower()]
        assert all(requirement.specifier.contains(version) for version in versions), requirement
    (cudnn,) = [name for name in locked if name.startswith("nvidia-cudnn-cu")]
    assert cudnn == f"nvidia-cudnn-cu{build.cuda}"
