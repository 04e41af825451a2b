"""What set-up installs on which machine, up to the words of the install command, and when it does so anew.

.venv/bin/python -m pytest tests/setup/test_install.py

A stand-in for nvidia-smi is first on PATH, and a stand-in for the new environment's interpreter notes what it is asked.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support import ROOT, put

from scripts.setup import builds, install
from scripts.setup.builds import BUILDS

pytestmark = pytest.mark.real_interpreter  # interpreters of other environments

V100, A100, H100 = "Tesla V100-PCIE-16GB, 7.0", "NVIDIA A100-SXM4-40GB, 8.0", "NVIDIA H100 80GB HBM3, 9.0"
NEWEST, VOLTA = "-r requirements.lock", "-r requirements-torch2.10.lock"
MACHINES = {  # what nvidia-smi prints, and what is installed, and a word of why
    "V100": (f"echo '{V100}, 550.54.15'", VOLTA, r"V100.*sm_70"),
    "V100 with a new driver": (f"echo '{V100}, 580.65.06'", VOLTA, r"V100.*sm_70"),
    "A100": (f"echo '{A100}, 580.65.06'", NEWEST, r"A100.*sm_80.*580"),
    "H100": (f"echo '{H100}, 590.44.01'", NEWEST, r"H100.*sm_90"),
    "H100 with an older driver": (f"echo '{H100}, 535.183.01'", VOLTA, "535.183.01 is older than 580"),
    # MIG: nvidia-smi lists the GPU and not its slices
    "MIG": (f"echo '{A100}, 580.65.06'", NEWEST, "A100"),
    "V100 beside H100": (f"echo '{H100}, 580.65.06'; echo '{V100}, 580.65.06'", VOLTA, r"V100.*sm_70"),
    "hangs": ("sleep 60", NEWEST, "did not answer"),
    "no driver": (
        "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9",
        NEWEST,
        "NVIDIA-SMI has failed",
    ),
    "no GPU": ("true", NEWEST, "lists no GPU"),
    "no nvidia-smi": (None, NEWEST, "there is no nvidia-smi"),
}
OLD = "echo 'Field \"compute_cap\" is not a valid field to query.'; exit 2"


@pytest.fixture
def computer(tmp_path, monkeypatch):
    """Makes the stand-in for nvidia-smi print what a shell script says; None: there is none."""
    monkeypatch.setattr(builds.platform, "machine", lambda: "x86_64")

    def make(script: str | None) -> None:
        folder = tmp_path / "a bin"
        folder.mkdir(exist_ok=True)
        path = f"{folder}:/usr/bin:/bin"
        monkeypatch.setenv("PATH", path)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if script is not None:
            (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
            (folder / "nvidia-smi").chmod(0o755)

    return make


def installed(folder: Path, **variables) -> tuple[str, list[str]]:
    """What set-up says, and the installing command lines that the stand-in for an environment's python got."""
    venv, record = folder / "a venv", folder / "record"
    (venv / "bin").mkdir(parents=True)
    lines = [f'case $4 in install) echo "${{UV_INDEX:+UV_INDEX=$UV_INDEX }}$*" >>"{record}";; esac']
    lines += [f'case $3 in install) echo "$*" >>"{record}";; config) echo "$PIP_SAYS";; esac']
    put(venv / "bin", python="\n".join(lines), pip="exit 1")
    (venv / "pyvenv.cfg").write_text(f"executable = {venv}/bin/python\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    code = "import sys; from scripts.setup import builds; builds.NVIDIA_SMI_TIMEOUT_S = 1; "
    code += "import runpy; sys.argv[:] = ['install', sys.argv[1]]; "
    code += "runpy.run_module('scripts.setup.install', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, venv], cwd=ROOT, env=env, capture_output=True, text=True)
    return done.stdout + done.stderr, record.read_text().splitlines() if record.exists() else []


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_gets_a_torch_that_it_can_run(computer, tmp_path, name):
    """Protects the two commands on the machine that the suite is named for."""
    script, words, why = MACHINES[name]
    computer(script)
    output, commands = installed(tmp_path)
    assert re.search(why, output), output
    assert commands[-1].startswith("-m uv pip install") and commands[-1].endswith(words)


@pytest.mark.parametrize("hidden", ["", "-1", " ,-1,0"])
def test_who_hides_the_gpus_gets_the_newest_for_the_cpu(computer, tmp_path, hidden):
    """Protects the CPU's user on a machine whose GPU is too old for any torch: it need not fit, and a line says so."""
    computer("echo 'Tesla P100-PCIE-16GB, 6.0, 470.82.01'")
    output, commands = installed(tmp_path, CUDA_VISIBLE_DEVICES=hidden)
    assert f"the newest, as CUDA_VISIBLE_DEVICES={hidden} asks for no GPU" in output and commands[-1].endswith(NEWEST)
    _, commands = installed(tmp_path / "one", CUDA_VISIBLE_DEVICES="0")
    assert commands == []


@pytest.mark.parametrize(
    "script, why",
    [
        (OLD, "driver is older than 510"),
        ("echo 'Tesla P100-PCIE-16GB, 6.0, 580.65.06'", r"P100-PCIE-16GB \(sm_60\) has no kernels"),
    ],
)
def test_where_none_fits_nothing_is_installed(computer, tmp_path, script, why):
    computer(script)
    output, commands = installed(tmp_path)
    assert re.search(why, output) and "Traceback" not in output and "TORCH=" in output and commands == []
    assert output.rstrip().endswith("or CUDA_VISIBLE_DEVICES= for the CPU")


def test_users_choose_with_torch_and_pip_args(computer, tmp_path):
    computer(f"echo '{V100}, 550.54.15'")
    for number, (variables, words) in enumerate(
        [
            ({"TORCH": "2.10"}, VOLTA),
            ({"TORCH": "2.12.1"}, "-r requirements.txt torch==2.12.1"),
            ({"TORCH": "2.1"}, "-r requirements.txt torch==2.1"),  # not 2.10
        ]
    ):
        _, commands = installed(tmp_path / str(number), **variables)
        assert commands[-1].endswith(words)
    _, commands = installed(tmp_path / "pip", PIP_ARGS="--no-index --find-links /wheels")
    by_pip = "-m pip install --quiet --disable-pip-version-check --no-index --find-links /wheels"
    assert commands == [f"{by_pip} --require-hashes --only-binary :all: {VOLTA}"]


def test_another_index_has_other_builds_of_torch(computer, tmp_path):
    """Protects TORCH_INDEX, with which a machine without GPUs saves NVIDIA's libraries: uv and pip get the index beside
    PyPI, and no lock, whose hashes are those of PyPI's wheels. Mutant: the lock is kept."""
    computer(None)
    index = "https://an.index/cpu"
    _, commands = installed(tmp_path, TORCH_INDEX=index)
    assert f"UV_INDEX={index} -m uv pip install" in commands[-1]
    assert "-r requirements.txt torch>=" in commands[-1] and "--require-hashes" not in commands[-1]
    _, commands = installed(tmp_path / "by pip", TORCH_INDEX=index, PIP_ARGS="--no-cache-dir")
    assert f"-m pip install --quiet --disable-pip-version-check --extra-index-url {index}" in commands[-1]


def test_a_locked_set_up_asks_for_hashes_of_everything(computer, tmp_path):
    """Protects against one package without a hash: uv takes it from a lock without a word. And from a source, whose
    build fetches tools that no lock knows."""
    computer(None)
    _, commands = installed(tmp_path)
    installs = [command for command in commands if " install " in command]
    assert len(installs) == 2 and all("--require-hashes" in command for command in installs)  # uv, then all
    assert all("--only-binary :all:" in command for command in installs)  # mutant: not for uv itself
    _, commands = installed(tmp_path / "another", TORCH="2.12.1")
    assert "--require-hashes" in commands[-2] and "--require-hashes" not in commands[-1]


def test_pip_installs_where_it_has_settings_of_its_own(computer, tmp_path):
    """Protects sites with a mirror: pip.conf and PIP_* hold whatever installs."""
    computer(None)
    _, commands = installed(tmp_path, PIP_SAYS="global.index-url='https://mirror.example/simple'")
    assert commands[-1].startswith("-m pip install ")
    _, commands = installed(tmp_path / "other", PIP_SAYS="global.timeout='60'")
    assert commands[-1].startswith("-m uv pip install ")


# --- an interpreter that has gone ---------------------------------------------------------------------------------


@pytest.fixture
def environment_of_old(tmp_path, monkeypatch):
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


def test_a_set_up_of_another_interpreter_is_not_current(environment_of_old, tmp_path):
    """Protects whoever upgraded Python, or loads another module: `No module named torch` after "everything is
    installed". Mutants: only the packages count; the link counts, not where it leads."""
    (tmp_path / "python3").unlink()
    (tmp_path / "python3").symlink_to("python3.12")
    assert not install.is_current(environment_of_old)
    (tmp_path / "python3").unlink()
    assert not install.is_current(environment_of_old)


@pytest.mark.medium
def test_a_set_up_whose_interpreter_has_gone_is_made_anew(environment_of_old, tmp_path, monkeypatch):
    """Mutant: venv's files are written over the old ones."""
    (tmp_path / "python3.11").unlink()
    monkeypatch.setattr(install, "install_packages", lambda *words: None)
    install.install(environment_of_old)
    assert install.is_current(environment_of_old) and not (environment_of_old / "leftover").exists()
    version = subprocess.run([environment_of_old / "bin/python", "-m", "pip", "--version"], capture_output=True)
    assert version.returncode == 0


def test_a_folder_that_is_no_environment_keeps_its_files(tmp_path, monkeypatch):
    """Protects whoever names a folder of theirs. Mutant: each folder is cleared."""
    (tmp_path / "kept").touch()
    install.clear(tmp_path)
    assert (tmp_path / "kept").exists()


# --- locks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.lock)
def test_a_lock_has_all_requirements_with_hashes_and_a_torch_of_its_line(build):
    """Protects next month's set-up, and each lock's promise: its CUDA is the one that its drivers are checked for."""
    text = (ROOT / build.lock).read_text()
    blocks = re.findall(r"^(\S.*?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.MULTILINE)
    locked = {}
    for line, _ in blocks:
        requirement = Requirement(line)
        locked.setdefault(requirement.name.replace("_", "-").lower(), []).append(str(requirement.specifier)[2:])
    assert len(blocks) == len(re.findall(r"^[a-z]", text, re.MULTILINE))
    expected = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    for requirement in map(Requirement, [*expected, build.versions]):
        versions = locked[requirement.name.lower()]
        assert all(requirement.specifier.contains(version) for version in versions), requirement
    assert re.search(r"^uv==.*\n(    --hash=.*\n)*", text, re.MULTILINE)[0] in (ROOT / install.UV_LOCK).read_text()
    (cudnn,) = [name for name in locked if name.startswith("nvidia-cudnn-cu")]
    assert cudnn == f"nvidia-cudnn-cu{build.cuda}"


def set_up(
    checkout: Path, folder: Path, change_lock=lambda text: text, **variables
) -> tuple[Path, subprocess.CompletedProcess]:
    """Really set up an environment from a copy of the suite; its interpreter, and the finished process."""
    for path in ROOT.glob("requirements*"):
        text = path.read_text()
        (checkout / path.name).write_text(change_lock(text) if path.suffix == ".lock" else text)
    command = [sys.executable, "-m", "scripts.setup.install", folder / "an env"]
    env = {name: value for name, value in os.environ.items() if name not in ("TORCH", "PIP_ARGS")}
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True)
    print(done.stdout + done.stderr)
    return folder / "an env/bin/python", done


@pytest.mark.slow
def test_a_changed_hash_makes_set_up_fail(checkout, tmp_path):
    """Protects against a package that is not the one that was locked: uv refuses it, and so does pip after it."""

    def small(text, change=lambda block: block):
        blocks = re.findall(r"^\S.*\n(?:    --hash=.*\n)+", text, re.MULTILINE)
        kept = [block for block in blocks if re.match(r"(uv|pluggy)==", block)]
        absent = "torch==2.15.0 ; sys_platform == 'none' \\\n    --hash=sha256:" + 64 * "0" + "\n"
        return "".join([change(kept[0]), *kept[1:], absent])

    def spoil(block):  # the first digit of each hash
        return re.sub(r"sha256:(.)", lambda found: "sha256:" + ("1" if found[1] == "0" else "0"), block)

    python, done = set_up(checkout, tmp_path / "good", small)
    assert done.returncode == 0 and python.exists()
    _, done = set_up(checkout, tmp_path / "bad", lambda text: small(text, spoil))
    assert done.returncode == 2 and "Traceback" not in done.stderr and "hash" in done.stderr.lower()
