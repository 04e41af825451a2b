"""Files that others may have put where the suite opens them.

.venv/bin/python -m pytest tests/benchmarks/test_files.py
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import (
    exchange,
    hold_lock,
    home_folder,
    open_lock,
    open_no_follow,
    read_regular_file,
    replace_atomically,
)


def test_a_regular_file_is_read_also_through_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("real")
    assert read_regular_file(tmp_path / "real", 4) == read_regular_file(tmp_path / "link", 4) == b"1234"
    with pytest.raises(OSError, match="4 bytes, more than 3"):
        read_regular_file(tmp_path / "real", 3)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    """Protects a run from waiting for ever: nobody writes into these."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", tmp_path):
        with pytest.raises(OSError):
            read_regular_file(path, 10)


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    """Protects the message from naming a descriptor: "Is a directory: 5". Mutant: a file object first."""
    with pytest.raises(OSError, match="it is not a regular file") as raised:
        read_regular_file(tmp_path, 10)
    assert raised.value.filename == str(tmp_path)


def test_a_lock_is_not_opened_through_a_link(tmp_path):
    """Protects a file of the user's, to which somebody has laid a link by the lock's name."""
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "lock").symlink_to("precious")
    (tmp_path / "new").symlink_to("not there")
    os.mkfifo(tmp_path / "fifo")
    for name in ("lock", "new", "fifo"):
        with pytest.raises(UserError, match="not a regular file; remove it"):
            open_lock(tmp_path / name)
    assert (tmp_path / "precious").read_text() == "kept" and not (tmp_path / "not there").exists()


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_nothing_is_written_to_a_file_that_has_another_name(tmp_path, mode):
    """Protects a file of the user's to which an unpacked archive has brought a hard link. Mutants: no look; a look
    after the file was cut to nothing."""
    (tmp_path / "precious").write_text("kept")
    os.link(tmp_path / "precious", tmp_path / "log")
    with pytest.raises(OSError, match="it is a hard link: the file has another name, too; remove it"):
        open(tmp_path / "log", mode, opener=open_no_follow)  # noqa: SIM115
    with pytest.raises(UserError, match="it is a hard link"):
        open_lock(tmp_path / "log")
    assert (tmp_path / "precious").read_text() == "kept"
    with open(tmp_path / "log", opener=open_no_follow) as file:  # earlier versions made checkpoints with two names
        assert file.read() == "kept"
    (tmp_path / "precious").unlink()
    with open(tmp_path / "log", mode, opener=open_no_follow) as file:
        file.write("more")
    assert (tmp_path / "log").read_text() == {"w": "more", "a": "keptmore", "r+": "more"}[mode]


def test_a_lock_has_one_holder_and_a_deadline(tmp_path):
    late = pytest.raises(TimeoutError, match="has held the lock for more than")
    with hold_lock(tmp_path / "lock"), late, hold_lock(tmp_path / "lock", limit_s=0.1):
        pass
    with hold_lock(tmp_path / "lock", limit_s=0) as descriptor:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o002, 0o664), (0o022, 0o644)])
def test_the_umask_says_who_may_read_a_new_file(tmp_path, umask, mode):
    """Protects a user who keeps files private, and a group that shares them; an old file's mode does not stay."""
    path = tmp_path / "table.csv"
    path.touch(0o640)
    before = os.umask(umask)
    try:
        replace_atomically(path, lambda file: file.write(b"new"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError):
        replace_atomically(path, lambda file: file.write(b"half") / 0)
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "old"


HOMELESS = """
from pathlib import Path
from benchmarks.common.system.files import home_folder, hold_lock, open_lock, read_regular_file, replace_atomically
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import list_images
data = Path("data/imagenet-mini")
print(home_folder(), len(list_images(data / "val")), cached_fingerprint(data))
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


def test_what_cannot_be_exchanged_stays_as_it_was(tmp_path):
    """Protects the caller, who has another way then. Mutant: the answer of the system not looked at."""
    (tmp_path / "one").mkdir()
    assert not exchange(tmp_path / "one", tmp_path / "nothing") and not exchange(tmp_path / "nothing", tmp_path / "one")
    assert [*tmp_path.iterdir()] == [tmp_path / "one"]
