"""`make clean`, and what is measured into published sets: nothing that is needed is lost.

.venv/bin/python -m pytest tests/setup/test_clean.py
"""

import os
import pty
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock
from scripts.runner import loop, preflight
from scripts.shared.repository import process_space


@pytest.fixture
def checkout(tmp_path):
    """A checkout with what make clean needs, and sets: two free ones, a published one, and results/latest."""
    folder = tmp_path / "a checkout"
    for name in (
        "benchmarks/common/errors.py",
        "benchmarks/common/files.py",
        "scripts/shared/repository.py",
        "scripts/setup/clean.py",
        "Makefile",
    ):
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


def clean(folder, *words, stdin=subprocess.DEVNULL, **variables):
    words = ["make", "clean", "SETUP=no", f"PYTHON={sys.executable}", *words]
    env = environment(PYTHON=None, **variables)
    return subprocess.run(words, cwd=folder, env=env, stdin=stdin, capture_output=True, text=True)


def left(folder):
    return sorted(path.name for path in (folder / "results").iterdir())


ALL = ["README.md", "latest", "link", "one", "published", "two"]


def test_clean_removes_nothing_unasked(checkout):
    """Protects hours of runs. Mutant: no terminal taken for yes."""
    done = clean(checkout)
    assert done.returncode == 2 and left(checkout) == ALL
    assert "results/one (1 runs)" in done.stdout and "make clean YES=yes" in done.stderr


@pytest.mark.parametrize(("answer", "goes"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_clean_asks_on_a_terminal(checkout, answer, goes):
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    done = clean(checkout, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == (0 if goes else 2), done.stderr  # make's own, for a 1
    assert left(checkout) == (["README.md", "published"] if goes else ALL)


@pytest.mark.parametrize("lock", ["two/.suite", "one/scaling/.suite", "one/logs/single-1-120000/run.yaml"])
def test_clean_leaves_a_set_that_is_in_use(checkout, lock):
    """Protects a suite that runs, and results/latest where it names its set; links are removed, and not what they
    name. A launcher that a person has started holds its run only. Mutants: locks of the set itself only; the lock not
    tried; a link's folder removed."""
    (checkout / "results" / lock).parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(checkout / "results" / lock):
        done = clean(checkout, "YES=yes")
    name = lock.partition("/")[0]
    assert done.returncode == 0 and f"results/{name}: a suite or a run is writing it" in done.stdout
    assert left(checkout) == ["README.md", *(["latest"] if name == "two" else []), *sorted([name, "published"])]
    assert (checkout / "elsewhere/kept").exists() and (checkout / "results/published/kept").exists()
    assert clean(checkout, "YES=yes").returncode == 0 and left(checkout) == ["README.md", "published"]


def test_a_set_is_neither_the_folder_of_all_sets_nor_the_name_of_the_newest(tmp_path, monkeypatch):
    """Protects all later suites, each of which has to make results/latest a link, and a set from make clean, which
    looks for locks in the folders of results/."""
    monkeypatch.setattr(preflight, "ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    for name, words in (("results", "the folder of all sets"), ("results/latest", "there is no newest set")):
        with pytest.raises(UserError, match=words):
            preflight.open_result_set(preflight.Path(name))
    assert [*tmp_path.iterdir()] == []
    preflight.open_result_set(preflight.Path("results/one"))


def test_a_folder_in_the_place_of_latest_costs_no_suite(tmp_path, monkeypatch, capsys):
    """Protects the runs from what copying results/ without links makes of results/latest."""
    monkeypatch.setattr(loop, "ROOT", tmp_path)
    for name in ("one", "latest"):
        (tmp_path / "results" / name).mkdir(parents=True)
    loop.link_latest(tmp_path / "results/one")
    assert "results/latest is not a link" in capsys.readouterr().err
    assert left(tmp_path) == ["latest", "one"]


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["ours", "nobody's"])  # names alike in all processes
def test_clean_leaves_checkouts_that_a_process_runs_in(checkout, pid):
    """./bench ab runs launchers there. Mutant: hidden folders removed as they are found."""
    folder = checkout / f"results/.worktrees-{pid}@{process_space()}-abc"
    folder.mkdir()
    assert clean(checkout, "YES=yes").returncode == 0 and folder.exists() == (pid == os.getpid())


@pytest.mark.parametrize(
    "name", ["{}", "{}/scaling", "{}/new/er", "results/../{}", "link", "link/scaling", "results/published"]
)
def test_nothing_is_measured_into_a_published_set(tmp_path, monkeypatch, name):
    """Protects what the manifest says of it. Mutants: the text compared; links not followed; folders inside."""
    published = tmp_path / "results/published/made"
    (published / "scaling").mkdir(parents=True)
    (tmp_path / "link").symlink_to(published)
    monkeypatch.setattr(preflight, "PUBLISHED", published.parent)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="is published, and nothing is measured into it; leave --results out"):
        preflight.open_result_set(preflight.Path(name.format("results/published/made")))
    assert sorted(tmp_path.rglob("*")) == before
    preflight.open_result_set(tmp_path / "results/other")
