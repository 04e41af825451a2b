"""`make clean`, and what is measured into published sets: nothing that is needed is lost."""

import os
import pty
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from scripts.runner import preflight

COPIED = ("benchmarks/common/errors.py", "benchmarks/common/files.py", "scripts/shared/repository.py")
ALL = ["README.md", "latest", "link", "one", "published", "two"]


@pytest.fixture
def checkout(tmp_path):
    """A checkout with what make clean needs, and sets: two free ones, a published one, and results/latest."""
    folder = tmp_path / "a checkout"
    for name in (*COPIED, "scripts/setup/clean.py", "Makefile"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    for name in ("one", "two", "published/kept", "one/scaling"):
        (folder / "results" / name).mkdir(parents=True)
        (folder / "results" / name / "runs.csv").write_text("run_id\na\n")
    (folder / "results/README.md").write_text("")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/kept").write_text("")
    (folder / "results/link").symlink_to(folder / "elsewhere")
    (folder / "results/latest").symlink_to("two")
    return folder


def clean(folder, *words, stdin=subprocess.DEVNULL):
    words = ["make", "clean", "SETUP=no", f"PYTHON={sys.executable}", *words]
    return subprocess.run(words, cwd=folder, env=environment(PYTHON=None), stdin=stdin, capture_output=True, text=True)


def left(folder):
    return sorted(path.name for path in (folder / "results").iterdir())


def test_clean_removes_nothing_unasked(checkout):
    done = clean(checkout)
    assert done.returncode == 2 and left(checkout) == ALL
    assert "results/one" in done.stdout and "make clean YES=yes" in done.stderr
    for answer, kept in (("\n", ALL), ("y\n", ["README.md", "published"])):
        ours, theirs = pty.openpty()
        os.write(ours, answer.encode())
        clean(checkout, stdin=theirs)
        os.close(ours)
        os.close(theirs)
        assert left(checkout) == kept
    assert (checkout / "elsewhere/kept").exists() and (checkout / "results/published/kept").exists()


@pytest.mark.parametrize("lock", ["one/scaling/.suite", "two/logs/single-1-120000/run.yaml"])
def test_clean_leaves_a_set_that_is_in_use(checkout, lock):
    """By a suite, or by a launcher that a person has started; and checkouts that ./bench ab runs in."""
    (checkout / "results" / lock).parent.mkdir(parents=True, exist_ok=True)
    (checkout / "results/.worktrees-1@a.1-abc").mkdir()
    with hold_lock(checkout / "results" / lock):
        done = clean(checkout, "YES=yes")
    name = lock.partition("/")[0]
    assert done.returncode == 0 and f"results/{name}: a suite or a run is writing it" in done.stdout
    assert left(checkout) == sorted([".worktrees-1@a.1-abc", "README.md", name, "published"])


@pytest.mark.parametrize("name", ["link/scaling", "results", "results/latest"])
def test_nothing_is_measured_into_a_published_set_nor_into_the_folder_of_all(tmp_path, monkeypatch, name):
    published = tmp_path / "results/published/made"
    (published / "scaling").mkdir(parents=True)
    (tmp_path / "link").symlink_to(published)
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    monkeypatch.setattr(preflight, "PUBLISHED", published.parent)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"nothing is measured into it|is no set"):
        preflight.open_result_set(tmp_path / name)
    assert sorted(tmp_path.rglob("*")) == before
