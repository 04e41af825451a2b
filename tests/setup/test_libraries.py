"""Horovod and Apex: built when a run first needs one, from source, once. Nothing real is compiled here."""

import os
import subprocess

import pytest
from support import ROOT, put

from scripts.setup import libraries

pytestmark = pytest.mark.real_interpreter  # .venv/bin/python is what set-up has made


def test_a_library_is_built_once_and_its_failure_is_remembered(tmp_path, monkeypatch):
    monkeypatch.setattr(libraries, "VENV", tmp_path)
    monkeypatch.delenv("SETUP", raising=False)
    python, codes = str(tmp_path / "bin/python"), iter([-15, 1])

    def run(command, **popen):
        code = next(codes)
        if code > 0:
            (tmp_path / "horovod.failed").write_text("Horovod cannot be built: there is no g++\n")
        return code

    assert libraries.build_missing("horovod", "/usr/bin/python3", run) == ""
    assert libraries.build_missing("horovod", python, run) == ""  # Ctrl-C
    for _ in range(2):
        assert libraries.build_missing("horovod", python, run) == "Horovod cannot be built: there is no g++"
    (tmp_path / "lib/python3.11/site-packages/apex").mkdir(parents=True)
    assert libraries.build_missing("apex", python, run) == ""


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
    """The script as it ended, and the calls that a stand-in for the interpreter got."""
    put(folder / "bin", python=PYTHON.format(prefix=folder, wheel=wheel))
    env = {"PATH": os.environ["PATH"], "PYTHON": str(folder / "bin/python"), "HOME": str(folder)}
    (folder / "calls").write_text("")
    script = ROOT / "scripts/setup/horovod.sh"
    done = subprocess.run([script], env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    return done, (folder / "calls").read_text()


def test_the_script_says_in_one_line_why_it_fails_and_keeps_its_wheel(tmp_path):
    """A second clone, and each new set-up, finds the wheel."""
    done, _ = horovod(tmp_path, wheel="echo 'fatal error: cuda.h: No such file'; exit 1")
    reason = (tmp_path / "horovod.failed").read_text()
    assert done.returncode == 1 and reason.count("\n") == 1
    assert reason.startswith("Horovod cannot be built: fatal error: cuda.h: No such file")
    done, calls = horovod(tmp_path)
    assert done.returncode == 0 and "x.whl" in calls and not (tmp_path / "horovod.failed").exists(), done.stderr
    done, calls = horovod(tmp_path)
    assert done.returncode == 0 and "-m pip wheel" not in calls and f"{tmp_path}/.cache/" in calls, done.stderr
