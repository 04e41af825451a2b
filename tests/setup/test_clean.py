"""`make clean`, and what is measured into published sets: nothing that is needed is lost.

.venv/bin/python -m pytest tests/setup/test_clean.py
"""

import fcntl
import os
import pty
import shutil
import subprocess
import sys

import pytest
from support import ROOT, environment

from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import hold_lock
from benchmarks.common.system.repository import process_space
from scripts.runner import preflight, schedule
from scripts.runner.make_variables import read_variables


@pytest.fixture
def checkout(tmp_path):
    """A checkout with what make clean needs, and sets: two free ones, a published one, and results/latest."""
    folder = tmp_path / "a checkout"
    for name in (
        "benchmarks/common/system/errors.py",
        "benchmarks/common/system/files.py",
        "benchmarks/common/system/output.py",
        "benchmarks/common/system/repository.py",
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


def test_a_yes_of_another_program_removes_nothing(checkout):
    """Protects hours of runs where an installer has exported YES=yes. Mutant: the variable wherever it is from."""
    assert clean(checkout, YES="yes").returncode == 2 and left(checkout) == ALL


def test_a_folders_name_hides_nothing_of_what_is_to_be_removed(checkout):
    """Protects from a set that was unpacked into results/, whose name clears the screen. Mutant: print as it is."""
    (checkout / "results/x\x1b[2J").mkdir()
    said = clean(checkout).stdout
    assert "x?[2J" in said and "\x1b" not in said


@pytest.mark.parametrize(("answer", "goes"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_clean_asks_on_a_terminal(checkout, answer, goes):
    ours, theirs = pty.openpty()
    os.write(ours, answer.encode())
    done = clean(checkout, stdin=theirs)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == (0 if goes else 2), done.stderr  # make's own, for a 1
    assert left(checkout) == (["README.md", "published"] if goes else ALL)


@pytest.mark.parametrize("lock", ["two/.suite", "one/scaling/.suite", "one/logs/single-1-120000/unrecorded"])
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


def test_clean_leaves_checkpoints_that_a_run_writes(checkout):
    """Protects a checkpoint folder in results/ from being removed under its run. Mutant: no look at .in-use."""
    folder = checkout / "results/checkpoints/single-1"
    folder.mkdir(parents=True)
    with open(folder / ".in-use", "ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        done = clean(checkout, "YES=yes")
    assert done.returncode == 0 and folder.exists()
    assert "results/checkpoints: a suite or a run is writing it" in done.stdout
    assert clean(checkout, "YES=yes").returncode == 0 and not folder.exists()


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


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a link of another user")
def test_a_link_of_another_user_is_no_result_set(tmp_path, monkeypatch):
    """Protects a set of the user's: another user linked to it, and runs were added. Mutant: a look behind the link."""
    (tmp_path / "set").mkdir()
    (link := tmp_path / "link").symlink_to(tmp_path / "set")
    monkeypatch.setenv("RESULTS", str(link))
    assert read_variables().results.resolve() == tmp_path / "set"
    os.chown(link, 12345, -1, follow_symlinks=False)
    with pytest.raises(UserError, match=r"link belongs to another user \(12345\); choose another RESULTS"):
        read_variables()


def test_a_folder_in_the_place_of_latest_costs_no_suite(tmp_path, monkeypatch, capsys):
    """Protects the runs from what copying results/ without links makes of results/latest."""
    monkeypatch.setattr(schedule, "ROOT", tmp_path)
    for name in ("one", "latest"):
        (tmp_path / "results" / name).mkdir(parents=True)
    schedule.link_latest(tmp_path / "results/one")
    assert "results/latest is not a link" in capsys.readouterr().err
    assert left(tmp_path) == ["latest", "one"]


@pytest.mark.parametrize("pid", [os.getpid(), 2**22 + 1], ids=["ours", "nobody's"])  # names alike in all processes
def test_clean_leaves_checkouts_that_a_process_runs_in(checkout, pid):
    """./bench ab runs launchers there. Mutant: hidden folders removed as they are found."""
    folder = checkout / f"results/.worktrees-{pid}@{process_space()}-abc"
    folder.mkdir()
    assert clean(checkout, "YES=yes").returncode == 0 and folder.exists() == (pid == os.getpid())


def test_clean_leaves_checkouts_of_another_container(checkout):
    """Protects ./bench ab in a container that has the host's name and processes of its own. Mutant: the name of the
    host alone."""
    folder = checkout / f"results/.worktrees-{2**22 + 1}@{os.uname().nodename}.1-abc"
    folder.mkdir()
    done = clean(checkout, "YES=yes")
    assert done.returncode == 0 and folder.exists()


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
    with pytest.raises(UserError, match="is published, and nothing is measured into it; leave RESULTS out"):
        preflight.open_result_set(preflight.Path(name.format("results/published/made")))
    assert sorted(tmp_path.rglob("*")) == before
    preflight.open_result_set(tmp_path / "results/other")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("kind", ["a file", "a link to a file of the user's"])
def test_another_users_mark_of_a_published_set_stops_nobody(tmp_path, kind):
    """Protects all sets below a folder that everybody may write to, and `./bench ab`, which asks before each run:
    another user's published.json in /tmp ended them. The mark of the folder's owner counts. Mutants: whoever owns the
    mark; the owner of what a link leads to."""
    results, mark = tmp_path / "shared/mine/a set", tmp_path / "shared" / preflight.MARK
    results.mkdir(parents=True)
    (tmp_path / "a file").touch()
    if kind == "a file":
        mark.touch()
    else:
        mark.symlink_to(tmp_path / "a file")
    os.chown(mark, 12345, -1, follow_symlinks=False)
    assert preflight.why_not_writable(results) == ""
    os.chown(mark, 0, -1, follow_symlinks=False)
    assert "is published" in preflight.why_not_writable(results)
    for path in (mark, mark.parent):
        os.chown(path, 12345, -1, follow_symlinks=False)
    assert "is published" in preflight.why_not_writable(results)


@pytest.mark.slow
def test_every_command_that_measures_refuses_a_published_set():
    """The real commands and the real set. Mutant: each check left out."""
    results = next((ROOT / "results/published").glob("*/manifest.json")).parent
    before = sorted((path, path.stat().st_mtime_ns) for path in results.rglob("*"))
    env = environment(RESULTS=results, STRATEGIES="single", STRATEGY="single", A="flags:", B="flags:", REPEATS=9)
    commands = [
        ["scripts.runner.bench", "all"],
        ["scripts.studies.ab.ab"],
        ["scripts.runner.run_plan", "single"],
        ["scripts.studies.roofline.measured_peak", "--results", results],
        ["scripts.studies.loaders.measure_loader_limit", "--results", results],
        ["scripts.studies.predict.gradient_times", "--results", results],
    ]
    commands = [["-m", *words] for words in commands] + [["bench", "report", "--results", results]]
    started = [
        subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
        for words in commands
    ]
    for words, process in zip(commands, started, strict=True):
        output = process.communicate(timeout=300)[1]
        assert process.returncode == 2 and "is published, and nothing is measured into it" in output, (words, output)
    assert sorted((path, path.stat().st_mtime_ns) for path in results.rglob("*")) == before
