"""install_horovod.sh and install_apex.sh: whose interpreter, tools and wheels they take. Nothing is built here.

.venv/bin/python -m pytest tests/setup/test_install_scripts.py
"""

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

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
def test_a_script_takes_nothing_from_the_current_folder(tmp_path, script):
    """Protects who calls it in a folder of somebody else: there, a .venv or a json.py would be run. CDPATH, too."""
    checkout, foreign = tmp_path / "a checkout", tmp_path / "foreign"
    shutil.copytree(SETUP, checkout / "scripts" / "setup")
    for folder in (foreign, foreign / "scripts"):
        (folder / ".venv").mkdir(parents=True)
        put(folder / ".venv/bin", python=f"touch '{tmp_path}/foreign code ran'; exit 1")
        (folder / "json.py").write_text(f"open({str(tmp_path / 'foreign code ran')!r}, 'w')\nraise SystemExit(1)\n")
    (checkout / ".venv").mkdir()
    own = f'cat >/dev/null; echo "import json" | "{sys.executable}" - && touch "{tmp_path}/own"; exit 1'
    put(checkout / ".venv/bin", python=own)  # in place of a probe that takes torch's time; it, too, imports json
    env = {"PATH": os.environ["PATH"], "CDPATH": str(foreign), "HOME": str(tmp_path)}
    done = subprocess.run([checkout / "scripts/setup" / script], cwd=foreign, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "cannot import torch" in done.stderr
    assert (tmp_path / "own").exists() and not (tmp_path / "foreign code ran").exists()


@pytest.mark.parametrize("user", ["me:s3cret", "s3cret"])
def test_apex_is_taken_from_no_address_with_a_password(user):
    """Protects the password of a mirror, or a token in place of the user: git's command line is every user's to read,
    and a CI's log has the message. Mutants: no look at the address; passwords alone."""
    env = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, "APEX_GIT": f"https://{user}@mirror.example/apex"}
    done = subprocess.run([SETUP / "install_apex.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "credential helper" in done.stderr and "s3cret" not in done.stdout + done.stderr


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


@pytest.fixture
def kept(tmp_path) -> Path:
    """A cache with one wheel, as install_horovod.sh keeps it, though everybody may write where umask lets them."""
    (tmp_path / "built").mkdir()
    (tmp_path / "built/horovod.whl").write_bytes(b"a wheel")
    folder = tmp_path / "cache/horovod/abc"
    done = shell('umask 000; keep_wheel "$1" "$2"', tmp_path / "built", folder)
    assert done.returncode == 0, done.stderr
    return folder


def taken(folder: Path, to: Path) -> bool:
    to.mkdir()
    return shell('take_wheel "$1" "$2"', folder, to).returncode == 0


def link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


SPOILED = {
    "another wheel": lambda folder: (folder / "horovod.whl").write_bytes(b"another"),
    "no hash": lambda folder: (folder / "SHA256SUMS").unlink(),
    "another wheel without a hash": lambda folder: (folder / "SHA256SUMS").write_text(""),
    "others may write": lambda folder: folder.chmod(0o770),
    "others may write above": lambda folder: folder.parent.chmod(0o777),
    "others may write the wheel": lambda folder: (folder / "horovod.whl").chmod(0o666),
    "a link": link,
    "of somebody else": lambda folder: os.chown(folder, 12345, -1),
}


def test_a_kept_wheel_is_taken_again(tmp_path, kept):
    assert taken(kept, tmp_path / "to") and (tmp_path / "to/horovod.whl").read_bytes() == b"a wheel"
    assert kept.stat().st_mode & 0o77 == kept.parent.stat().st_mode & 0o77 == 0


@pytest.mark.parametrize("how", SPOILED)
def test_a_wheel_that_is_not_this_users_or_not_whole_is_left(tmp_path, kept, how):
    """Protects from who else can write there: the wheel's code would run as this user."""
    try:
        SPOILED[how](kept)
    except PermissionError:
        pytest.skip("needs root")
    assert not taken(kept, tmp_path / "to")


FACTS = ["{torch}", "3.99", "", "yes", "", "", "", "", "", "", "{prefix}"]


@pytest.mark.medium
def test_without_a_home_there_is_no_cache(tmp_path):
    """Protects a service or container without HOME: /tmp/.cache is anybody's, and its wheel's name can be computed."""
    script, torch = SETUP / "install_horovod.sh", f"0.0.{os.getpid()}"
    version, sha256 = (
        re.search(rf"^{name}=(.+)$", script.read_text(), re.MULTILINE)[1] for name in ("version", "sha256")
    )
    facts = "\n".join(FACTS).format(torch=torch, prefix=tmp_path)
    put(
        tmp_path / "bin",
        python=f"[[ $1 != - ]] || {{ cat >/dev/null; echo '{facts}'; exit; }}; echo \"$*\" >>'{tmp_path}/pip'",
    )
    checksum = subprocess.run(["bash", "-c", f"cksum <'{script}'"], capture_output=True, text=True).stdout.strip()
    identity = f"horovod {version}, torch {torch}, python 3.99, script {checksum}"
    (tmp_path / "horovod-build.failed").write_text(f"gloo, {identity}\n")  # so that nothing is built
    key = hashlib.sha256(f"{sha256} {checksum} {torch} 3.99 {platform.machine()} gloo\n".encode()).hexdigest()[:16]

    def installs(cache: Path, **variables) -> bool:
        folder = cache / "imagenet-parallel-benchmarks" / f"horovod-{version}" / key
        shell('umask 077; mkdir -p "$1"; echo wheel >"$1/x.whl"; cd "$1"; sha256sum x.whl >SHA256SUMS', folder)
        (tmp_path / "pip").unlink(missing_ok=True)
        env = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "bin/python"), **variables}
        subprocess.run([script], cwd=tmp_path, env=env, capture_output=True, timeout=60)
        return (tmp_path / "pip").exists()

    assert installs(tmp_path / "home/.cache", HOME=str(tmp_path / "home"))
    assert installs(tmp_path / "xdg", XDG_CACHE_HOME=str(tmp_path / "xdg"))
    planted = Path("/tmp/.cache/imagenet-parallel-benchmarks", f"horovod-{version}", key)
    try:
        assert not installs(Path("/tmp/.cache"))
        assert not installs(Path("/tmp/.cache"), XDG_CACHE_HOME="tmp/.cache")
    finally:
        shutil.rmtree(planted)
        with contextlib.suppress(OSError):  # what others have there stays
            os.removedirs(planted.parent)
