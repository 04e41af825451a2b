"""Files that are whole or not there, and locks.

.venv/bin/python -m pytest tests/benchmarks/test_files.py
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from benchmarks.common.files import hold_lock, home_folder, replace_atomically


def test_a_lock_has_one_holder_and_a_deadline(tmp_path):
    late = pytest.raises(TimeoutError, match=r"another process has held .*lock for more than 0.1 s")
    with hold_lock(tmp_path / "lock"), late, hold_lock(tmp_path / "lock", limit_s=0.1):
        pass
    with hold_lock(tmp_path / "lock", limit_s=0) as descriptor:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        replace_atomically(path, lambda file: file.write(b"half") / 0)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"


HOMELESS = """
from pathlib import Path
from benchmarks.common.files import home_folder, hold_lock, replace_atomically
from benchmarks.common.listing import fingerprint
from benchmarks.common.listing import list_images
data = Path("data/imagenet-mini")
print(home_folder(), len(list_images(data / "val")), fingerprint(data))
"""


@pytest.mark.parametrize("variables", [{}, {"HOME": ""}])
def test_a_user_without_a_name_and_a_home_can_list_images(tiny_data, tmp_path, variables):
    """Protects containers, where the user is often a number that nobody has named. There is no cache, and no error."""
    other = ["unshare", "--user", "--map-user=12345", "--map-group=12345"]
    if subprocess.run([*other, "true"], capture_output=True).returncode:
        pytest.skip("this kernel lets nobody be another user")
    code = HOMELESS.replace("data/imagenet-mini", str(tiny_data))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([*other, sys.executable, "-c", code], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.split()[:2] == ["None", "23"]
    assert not [*tmp_path.iterdir()]


def test_home_is_what_the_user_says(monkeypatch):
    monkeypatch.setenv("HOME", "/somewhere else")
    assert home_folder() == Path("/somewhere else")
