"""Files that others may have put where the suite opens them.

.venv/bin/python -m pytest tests/benchmarks/test_files.py
"""

import fcntl
import os

import pytest

from benchmarks.common.errors import UserError
from benchmarks.common.files import locked, open_lock, read_regular


def test_a_regular_file_is_read_also_through_a_link(tmp_path):
    (tmp_path / "real").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("real")
    assert read_regular(tmp_path / "real", 4) == read_regular(tmp_path / "link", 4) == b"1234"
    with pytest.raises(OSError, match="4 bytes, more than 3"):
        read_regular(tmp_path / "real", 3)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    """Protects a run from waiting for ever: nobody writes into these."""
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", tmp_path):
        with pytest.raises(OSError):
            read_regular(path, 10)


def test_a_sparse_file_of_terabytes_is_refused(tmp_path):
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(3 << 40)
    with pytest.raises(OSError, match="more than"):
        read_regular(tmp_path / "sparse", 1 << 28)


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


def test_a_lock_has_one_holder_and_a_deadline(tmp_path):
    late = pytest.raises(TimeoutError, match="has held the lock for more than")
    with locked(tmp_path / "lock"), late, locked(tmp_path / "lock", limit_s=0.1):
        pass
    with locked(tmp_path / "lock", limit_s=0) as descriptor:
        assert fcntl.fcntl(descriptor, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
