"""Horovod and Apex: built when a run first needs one, from source, once. Nothing real is compiled here.

.venv/bin/python -m pytest tests/setup/test_libraries.py
"""

import os
import shlex
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment, put

from benchmarks.common.rows import read_table
from scripts.setup import install, libraries

pytestmark = pytest.mark.real_interpreter  # .venv/bin/python is what set-up has made


@pytest.fixture
def venv(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "VENV", tmp_path)
    monkeypatch.delenv("SETUP", raising=False)
    return tmp_path


def test_a_library_is_built_once_and_its_failure_is_remembered(venv, monkeypatch):
    """Protects five rounds from five builds of two minutes, and the reason in each row. An interpreter of the user's
    own gets no build. Mutants: SETUP=no is not asked; PYTHON is not asked; a failure is not remembered."""
    built, python = [], str(venv / "bin/python")

    def run(command, **popen):
        built.append(popen["env"]["PYTHON"])
        (venv / "horovod.failed").write_text("Horovod cannot be built: there is no g++\n")
        return 1

    assert libraries.build_missing("horovod", "/usr/bin/python3", run) == ""
    monkeypatch.setenv("SETUP", "no")
    assert libraries.build_missing("horovod", python, run) == "" and built == []
    monkeypatch.delenv("SETUP")
    for _ in range(2):
        assert libraries.build_missing("horovod", python, run) == "Horovod cannot be built: there is no g++"
    assert built == [python]
    (venv / "lib/python3.11/site-packages/apex").mkdir(parents=True)
    assert libraries.build_missing("apex", python, run) == "" and built == [python]


def test_a_build_that_a_signal_ends_is_done_by_the_next_run(venv):
    """Protects Horovod from a Ctrl-C that came while it was built. Mutant: any end counts as tried."""
    calls = []
    for _ in range(2):
        libraries.build_missing("horovod", str(venv / "bin/python"), lambda *words, **popen: calls.append(words) or -15)
    assert len(calls) == 2


@pytest.mark.slow  # real programs, each with its imports
def test_a_run_whose_library_cannot_be_built_is_skipped_with_the_reason(checkout, tmp_path, tiny_config, tiny_data):
    """Protects a suite of many strategies from one that lacks a compiler. Mutant: nobody builds before the run."""
    clone = tmp_path / "own checkout"
    shutil.copytree(checkout, clone, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [ROOT / "bench", *ROOT.glob("requirements*")]:
        shutil.copy(path, clone)
    put(clone / "scripts/setup", **{"horovod.sh": "echo no compiler here >.venv/horovod.failed; exit 1"})
    (clone / ".venv").mkdir()
    put(clone / ".venv/bin", python=f'exec {shlex.quote(sys.executable)} "$@"', pip="")
    (clone / ".venv/pyvenv.cfg").write_text(f"executable = {clone}/.venv/bin/python\n")
    (clone / ".venv" / install.READY).write_text(install.hash_of_lists())
    env = environment(CONFIG=tiny_config, DATA=tiny_data, PYTHON=None)
    words = ["run", "horovod_ddp", "--repeats", "1", "--results", tmp_path / "a set"]
    done = subprocess.run([clone / "bench", *words], env=env, capture_output=True, text=True, timeout=300)
    rows = read_table(tmp_path / "a set", "runs")
    assert rows.status.tolist() == ["skipped"] and rows.reason[0] == "no compiler here", done.stdout + done.stderr


# --- the scripts ------------------------------------------------------------------------------------------------------

PYTHON = """
case $* in
  -)  # asked for facts of torch
    cat >/dev/null
    printf '%s\\n' torch=2.99 python_version=3.99 has_headers=yes "prefix='{prefix}'" nvidia=/none cuda= capabilities=
    ;;
  "-m pip download "*)
    while [[ $1 != --dest ]]; do shift; done
    cd "$2" && mkdir horovod-0.28.1 && tar -czf horovod-0.28.1.tar.gz horovod-0.28.1 && rmdir horovod-0.28.1 ;;
  "-m pip wheel "*)
    while [[ $1 != --wheel-dir ]]; do shift; done
    {wheel} ;;
  *) ;;
esac
echo "$*" >>'{prefix}/calls'
"""


def horovod(folder, wheel="mkdir $2 && touch $2/x.whl"):
    """The script, with a stand-in for the interpreter: what is done, and which calls the interpreter got."""
    put(folder / "bin", python=PYTHON.format(prefix=folder, wheel=wheel))
    env = {"PATH": os.environ["PATH"], "PYTHON": str(folder / "bin/python"), "HOME": str(folder)}
    (folder / "calls").write_text("")
    script = ROOT / "scripts/setup/horovod.sh"
    done = subprocess.run([script], env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    return done, (folder / "calls").read_text()


def test_a_wheel_that_was_built_before_is_installed_again(tmp_path):
    """Protects two minutes in a second clone, and after each new set-up. Mutant: no wheel is kept."""
    done, calls = horovod(tmp_path)
    assert done.returncode == 0 and "gloo" in done.stderr and "x.whl" in calls, done.stderr
    done, calls = horovod(tmp_path)
    assert done.returncode == 0 and "-m pip wheel" not in calls and f"{tmp_path}/.cache/" in calls, done.stderr


def test_a_build_that_fails_says_why_in_one_line(tmp_path):
    """Protects the row of a skipped run. Mutant: the log alone has the reason."""
    done, _ = horovod(tmp_path, wheel="echo 'fatal error: cuda.h: No such file'; exit 1")
    assert done.returncode == 1
    reason = (tmp_path / "horovod.failed").read_text()
    assert reason.startswith("Horovod cannot be built: fatal error: cuda.h: No such file") and reason.count("\n") == 1
    assert reason.endswith("mend that; then: scripts/setup/horovod.sh\n") and "; mend that" in done.stderr
    done, _ = horovod(tmp_path)
    assert done.returncode == 0 and not (tmp_path / "horovod.failed").exists()


@pytest.mark.parametrize("script", ["horovod.sh", "apex.sh"])
def test_a_script_is_called_from_any_folder(tmp_path, script):
    """Protects who stands elsewhere: the checkout's own .venv is asked for torch. Apex wants a GPU first."""
    checkout = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts/setup", checkout / "scripts/setup")
    (checkout / ".venv").mkdir()
    put(checkout / ".venv/bin", python=f"cat >/dev/null; touch '{tmp_path}/own'; exit 1")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run([checkout / "scripts/setup" / script], cwd=tmp_path, env=env, capture_output=True, text=True)
    if script == "apex.sh" and not (tmp_path / "own").exists():
        assert done.returncode == 1 and "apex.amp refuses a model on the CPU" in done.stderr
        return
    assert done.returncode == 2 and "cannot import torch" in done.stderr and (tmp_path / "own").exists()
