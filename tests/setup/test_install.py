"""What set-up installs on which machine, up to the words of the install command; and which GPUs a run may use.

.venv/bin/python -m pytest tests/setup/test_install.py

A stand-in for nvidia-smi is first on PATH, and a stand-in for the new environment's interpreter notes what it is asked.
"""

import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from support import ROOT, put

from benchmarks.common import machine
from benchmarks.common.errors import UserError
from benchmarks.common.machine import usable_gpus
from benchmarks.common.rank import device_name
from scripts.setup import builds, install
from scripts.setup.builds import BUILDS
from scripts.shared.gpus import gpu_memory_bytes

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


def test_without_nvidia_smi_the_newest_is_installed(computer, tmp_path):
    computer(None)
    output, commands = installed(tmp_path)
    assert "there is no nvidia-smi" in output and commands[-1].endswith(NEWEST)


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


# --- which GPUs a run may use -------------------------------------------------------------------------------------


class FakeCuda:
    """Stands for torch.cuda on a machine with these GPUs."""

    def __init__(self, capabilities, arch_list=("sm_75", "sm_80", "sm_90"), starts=True, memory=(), names=()):
        self.capabilities, self.arch_list, self.starts = capabilities, list(arch_list), starts
        self.memory, self.names = memory, names

    def is_available(self):
        return self.starts and bool(self.capabilities)

    def device_count(self):
        return len(self.capabilities)

    def get_device_capability(self, index):
        return self.capabilities[index]

    def get_device_name(self, index):
        return self.names[getattr(index, "index", index)] if self.names else f"GPU {index}"

    def get_device_properties(self, index):
        major, minor = self.capabilities[index]
        memory = self.memory[index] if self.memory else None
        return types.SimpleNamespace(total_memory=memory, major=major, minor=minor)

    def get_arch_list(self):
        return self.arch_list

    def init(self):
        raise RuntimeError("CUDA unknown error\nmore")


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    def make(cuda, visible=None, nodes=("nvidia0", "nvidia1")):
        dev = tmp_path / "dev"
        shutil.rmtree(dev, ignore_errors=True)
        dev.mkdir()
        for name in nodes:
            (dev / name).touch()
        monkeypatch.setattr(machine, "DEVICES", dev)
        monkeypatch.setattr(torch, "cuda", cuda)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    yield make
    torch.get_device_module.cache_clear()  # torch keeps the stand-in for the tests after this one


def test_usable_gpus_counts_those_that_run_kernels(gpu_machine, monkeypatch):
    gpu_machine(FakeCuda([(8, 0), (8, 6)]))
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert usable_gpus() == 2
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"  # else energy is of other GPUs, where there are two kinds
    gpu_machine(FakeCuda([(8, 0)]), visible="1")
    assert usable_gpus() == 1
    gpu_machine(FakeCuda([(8, 0), (8, 6)]), visible="0,1,")  # CUDA's list ends at a name that is none
    assert usable_gpus() == 2
    for hidden in ("", "-1", " ", "-1,0"):
        gpu_machine(FakeCuda([(8, 0)]), visible=hidden)
        assert usable_gpus() == 0


@pytest.mark.parametrize(
    ("nodes", "has_tool", "is_there"),
    [((), True, False), (("dxg",), False, False), (("dxg",), True, True), (("nvidia0",), False, True)],
    ids=["login node", "another GPU in WSL", "WSL", "no nvidia-smi"],
)
def test_which_signs_are_an_nvidia_gpu(gpu_machine, computer, nodes, has_tool, is_there):
    """Protects login nodes, which have the tools without the hardware, and WSL, whose one node is of all makers."""
    computer("true" if has_tool else None)
    gpu_machine(FakeCuda([], starts=False), nodes=nodes)
    if not is_there:
        assert usable_gpus() == 0
        return
    with pytest.raises(UserError, match=r"an NVIDIA GPU is here, but torch .* cannot use it"):
        usable_gpus()


@pytest.mark.parametrize(
    ("cuda", "visible", "sentence"),
    [
        (FakeCuda([(7, 0)]), None, r"no kernels for GPU 0 \(sm_70\); .*\./bench setup"),
        (FakeCuda([(9, 0), (7, 0)]), None, r"no kernels for GPU 1 \(sm_70\)"),
        (
            FakeCuda([(8, 0)], starts=False),
            None,
            r"cannot use it: CUDA unknown error; .*\./bench setup.*DEVICES= trains",
        ),
        (FakeCuda([(8, 0)], starts=False), "0", "cannot use it with CUDA_VISIBLE_DEVICES=0: CUDA unknown error"),
        (FakeCuda([(8, 0)]), "0,7", "0,7 names more than the 1 GPU"),
        (FakeCuda([(8, 0)]), "MIG-1f,MIG-8a-1b", "1b names more than the 1 GPU.*one MIG slice"),
    ],
)
def test_gpus_that_cannot_be_used_get_a_sentence(gpu_machine, cuda, visible, sentence):
    """Protects against training on CPUs under a GPU's name, and against a traceback at the first kernel."""
    gpu_machine(cuda, visible)
    with pytest.raises(UserError, match=sentence):
        usable_gpus()


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use a GPU here")
def test_torch_itself_says_why_it_cannot_use_a_gpu(gpu_machine):
    """Protects a GPU's owner whose pip chose a build for the CPU, or whose driver does not run."""
    gpu_machine(torch.cuda)
    words = "(Torch not compiled with CUDA enabled|Found no NVIDIA driver.*); `rm -rf .venv && ./bench setup` installs"
    with pytest.raises(UserError, match=f"cannot use it: {words}"):
        usable_gpus()


def test_the_smallest_of_the_gpus_that_are_used_counts(gpu_machine, monkeypatch):
    """Protects a small card beside a large one, and a MIG slice, whose memory is not the GPU's."""
    monkeypatch.delenv("NUM_GPUS", raising=False)
    monkeypatch.delenv("GPU_MEMORY_GB", raising=False)
    gpu_machine(FakeCuda([(9, 0), (8, 0)], memory=[85.0e9, 42.3e9]))
    assert gpu_memory_bytes(2) == 42.3e9 and gpu_memory_bytes(1) == 85.0e9
    gpu_machine(FakeCuda([], starts=False), visible="")
    assert gpu_memory_bytes(2) is None


def test_a_row_says_both_kinds_of_gpu(gpu_machine):
    """Protects a reader of V100 beside H100: every step waits for the slower one."""
    gpu_machine(FakeCuda([(9, 0), (7, 0), (9, 0)], names=["H100", "V100", "H100"]))
    assert device_name(torch.device("cuda", 0)) == "H100"
    assert device_name(torch.device("cuda", 0), num_used=3) == "H100 + V100"
    assert device_name(torch.device("cuda", 1)) == "V100"
