"""install_horovod.sh and install_apex.sh: whose interpreter, tools and wheels they take. Nothing is built here.

.venv/bin/python -m pytest tests/setup/test_install_scripts.py
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys

import pytest
from support import ROOT, put

pytestmark = pytest.mark.real_interpreter  # interpreters of other environments

SETUP = ROOT / "scripts" / "setup"
INSTALL = 'work=$(mktemp -d); install_tools "$@"'


def shell(text: str, *words, **variables) -> subprocess.CompletedProcess:
    """Bash that has install_lib.sh's functions, with `words` as $1, $2, ..."""
    command = ["bash", "-c", f'what=test; source "{SETUP}/install_lib.sh"; {text}', "test", *map(str, words)]
    env = {"PATH": os.environ["PATH"], "PYTHON": sys.executable} | {
        name: str(value) for name, value in variables.items()
    }
    return subprocess.run(command, env=env, capture_output=True, text=True)


@pytest.mark.parametrize("script", ["install_horovod.sh", "install_apex.sh"])
def test_a_script_is_called_from_any_folder(tmp_path, script):
    """Protects who stands elsewhere: the checkout's own .venv is asked for torch."""
    checkout = tmp_path / "a checkout"
    shutil.copytree(SETUP, checkout / "scripts" / "setup")
    (checkout / ".venv").mkdir()
    put(checkout / ".venv/bin", python=f"cat >/dev/null; touch '{tmp_path}/own'; exit 1")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run([checkout / "scripts/setup" / script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "cannot import torch" in done.stderr and (tmp_path / "own").exists()


def test_a_set_up_changes_no_other_repository():
    """Protects whose shell has the GIT_DIR of a hook or of dotfiles: Apex's set-up fetched into that repository, and
    checked out over its files. Mutant: the variables as they stand."""
    env = {"PATH": os.environ["PATH"], "GIT_DIR": "/x", "GIT_WORK_TREE": "/x", "GIT_CONFIG_COUNT": "0"}
    words = ["bash", "-c", f"what=x; source '{SETUP}/install_lib.sh'; env"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
    assert "GIT_DIR" not in done.stdout and "GIT_WORK" not in done.stdout and "GIT_CONFIG_COUNT=0" in done.stdout


def test_build_tools_come_from_the_lock_with_their_hashes(tmp_path):
    """Protects the builds from a tool that nobody has looked at. What is installed already is left as it is."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    recording = f'cp "${{@: -1}}" "{tmp_path}/tools.txt" && echo "$*" >"{tmp_path}/pip"'
    recording = f'if [[ $2 == pip ]]; then {recording}; else exec "{tmp_path}/bare/bin/python" "$@"; fi'
    put(tmp_path / "bin", python=recording)
    expected = ["cmake", *re.findall(r"needs=\((.+)\)", (SETUP / "install_horovod.sh").read_text())[0].split()]
    expected += re.findall(r"install_tools (.+) &&", (SETUP / "install_apex.sh").read_text())[0].split()
    done = shell(INSTALL, *expected, PYTHON=tmp_path / "bin/python")
    assert done.returncode == 0, done.stderr
    reported = (tmp_path / "pip").read_text()
    assert "--require-hashes" in reported and "--no-deps" in reported
    assert "--only-binary :all:" in reported  # the build of a source would fetch tools that have no hash
    tools = (tmp_path / "tools.txt").read_text()
    for name in expected:
        line, *rest = tools.partition(f"{name}==")[2].splitlines()
        assert line.endswith(" \\") and rest[0].startswith("    --hash=sha256:"), name
    done = shell(INSTALL, "packaging", "wheel")  # which are here
    assert done.returncode == 0 and done.stdout + done.stderr == ""


FACTS = ["0.0.1", "3.99", "", "yes", "", "", "", "", "", "", "{prefix}"]


def test_a_wheel_that_was_built_before_is_installed_again(tmp_path):
    """Protects minutes in a second clone: the key of the cache has the torch and the Python of the wheel."""
    facts, calls = "\n".join(FACTS).format(prefix=tmp_path), tmp_path / "pip"
    probe = f"[[ $1 != - ]] || {{ cat >/dev/null; echo '{facts}'; exit; }}; echo \"$*\" >>'{calls}'"
    put(tmp_path / "bin", python=probe)
    env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "bin/python"), "HOME": str(tmp_path), "BUILD": "no"}
    script = SETUP / "install_horovod.sh"
    assert subprocess.run([script], env=env, capture_output=True, timeout=60).returncode == 3 and not calls.exists()
    text = script.read_text()
    version, sha256 = (re.search(rf"^{name}=(.+)$", text, re.MULTILINE)[1] for name in ("version", "sha256"))
    checksum = subprocess.run(["bash", "-c", f"cksum <'{script}'"], capture_output=True, text=True).stdout.strip()
    built_for = f"{sha256} {checksum} 0.0.1 3.99 {platform.machine()} gloo\n"
    key = hashlib.sha256(built_for.encode()).hexdigest()[:16]
    folder = tmp_path / ".cache/imagenet-parallel-benchmarks" / f"horovod-{version}" / key
    (tmp_path / "built").mkdir()
    (tmp_path / "built/x.whl").write_text("a wheel")
    assert shell('keep_wheel "$1" "$2"', tmp_path / "built", folder).returncode == 0
    subprocess.run([script], env=env, capture_output=True, timeout=60)
    assert f"{folder}/x.whl" in calls.read_text()
