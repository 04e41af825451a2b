"""Folders that another user of the machine could replace.

.venv/bin/python -m pytest tests/benchmarks/test_folders_of_others.py
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.system import folders_of_others
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.folders_of_others import (
    refuse_folder_of_others,
    refuse_place_of_others,
    use_own_temporary_folder,
)
from benchmarks.common.system.repository import ROOT

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
OTHER = 12345


def why_refused(folder: Path, own_user_id: int | None = None, is_made: bool = True) -> str:
    """'' where the folder passes."""
    try:
        user_id = os.geteuid() if own_user_id is None else own_user_id
        refuse_folder_of_others(folder, user_id, "choose another", is_made)
    except UserError as error:
        return str(error)
    return ""


@pytest.fixture
def folder(tmp_path):
    """<tmp_path>/above/between/mine"""
    (made := tmp_path / "above/between/mine").mkdir(parents=True)
    return made


@pytest.mark.parametrize("above", [".", "..", "../.."])
def test_no_folder_above_may_be_writable_by_everybody(folder, above):
    """Protects a run's files: while the launcher ran, another user renamed RESULTS, and put a copy with another
    config.yaml in its place. Groups and sticky folders, such as /tmp, stay fine. Mutants: the last folder alone; its
    parent alone; the sticky bit not looked at; group-writable refused."""
    for mode in (0o2775, 0o1777):
        (folder / above).chmod(mode)
        assert why_refused(folder) == ""
    (folder / above).chmod(0o777)
    named = (folder / above).resolve()
    assert why_refused(folder) == f"everybody may write to {named}; run: chmod o-w {named}, or choose another"


@needs_root
@pytest.mark.parametrize("above", [".", "..", "../.."])
def test_no_folder_above_may_belong_to_another_user(folder, above):
    """Protects from what its owner puts there later. Mutants: as above, for the owner."""
    os.chown(folder / above, OTHER, -1)
    named = (folder / above).resolve()
    trust = f"set TRUSTED_OWNERS={OTHER} if you trust this user as you trust root"
    assert why_refused(folder) == f"{named} belongs to another user ({OTHER}); choose another, or {trust}"
    assert why_refused(folder, own_user_id=OTHER) == ""  # a file system that gives all files to one user


@needs_root
@pytest.mark.parametrize(("group", "mode", "passes"), [(-1, 0o2775, True), (-1, 0o755, False), (OTHER, 0o2775, False)])
def test_a_folder_that_its_owner_shares_with_the_users_group_passes(folder, group, mode, passes):
    """Protects those who work below a cluster's project folder, which belongs to one of the group. Mutants: never
    passes; the mode not looked at; the group not looked at; the last folder passes, too."""
    os.chown(folder.parent, OTHER, group)
    folder.parent.chmod(mode)
    assert (why_refused(folder) == "") == passes and why_refused(folder.parent)


@needs_root
@pytest.mark.parametrize(("trusted", "passes"), [(f"{OTHER}", True), (f"7,{OTHER}", True), ("7", False), ("", False)])
def test_a_folder_of_an_owner_whom_the_user_trusts_passes(folder, monkeypatch, trusted, passes):
    """Protects those who work below /data or /scratch of an administrator who is not root, and everybody else from
    owners whom nobody named. What everybody may write to is refused all the same. Mutants: the variable not read; any
    number enough; the mode not looked at."""
    monkeypatch.setenv("TRUSTED_OWNERS", trusted)
    os.chown(folder.parent, OTHER, -1)
    folder.parent.chmod(0o755)
    assert (why_refused(folder) == "") == passes
    folder.parent.chmod(0o777)
    assert why_refused(folder)


@pytest.mark.parametrize("text", ["ann", "0x5", "1001;1002", "1001,", " "])
def test_trusted_owners_are_numbers(folder, monkeypatch, text):
    """Protects from a name that is read as nobody. Mutant: what is no number left out."""
    monkeypatch.setenv("TRUSTED_OWNERS", text)
    assert why_refused(folder).startswith(f"TRUSTED_OWNERS is {text!r}, but must be numbers of users")


@pytest.mark.parametrize("missing", ["new", "new/er", "link"])
def test_what_is_yet_to_be_made_is_looked_at_as_far_as_it_is_there(folder, missing):
    """Protects a new set: who may replace a folder above it may replace the set. Mutants: nothing looked at; the
    nearest folder taken for the last one, which may not be a group's."""
    (folder / "link").symlink_to("new/er")
    assert why_refused(folder / missing, is_made=False) == ""
    if not os.geteuid():
        os.chown(folder, OTHER, -1)
    folder.chmod(0o2775)
    assert why_refused(folder / missing, is_made=False) == ""
    folder.parent.chmod(0o777)
    assert why_refused(folder / missing, is_made=False).startswith(f"everybody may write to {folder.parent}")


@pytest.mark.parametrize("missing", ["new", "new/er"])
def test_what_has_been_made_has_to_be_there(folder, missing):
    """Protects from another user who made the folder first, in /tmp, and has moved it away until the look is over.
    Mutant: what is not there passes."""
    with pytest.raises(FileNotFoundError):
        refuse_place_of_others(folder / missing, "", is_made=True)
    refuse_place_of_others(folder / missing, "")


def test_a_temporary_folder_that_is_moved_away_is_refused(folder, monkeypatch):
    """Protects torchrun's store: the owner of the folder above moved it away while this process looked at it, and back
    afterwards. Mutant: a folder that is yet to be made passes."""
    monkeypatch.setattr("tempfile.tempdir", str(folder / "moved"))
    with pytest.raises(UserError, match=r"No such file or directory; set TMPDIR to a folder that you have made$"):
        use_own_temporary_folder()


@needs_root
def test_a_link_of_another_user_in_the_path_is_refused(folder, tmp_path):
    """Protects from a link that is led elsewhere after the look, also one to which the user's own link leads, and one
    before `..`. A link of the user's own passes. Mutants: the path resolved first; the links' owners not looked at."""
    (shared := tmp_path / "shared").mkdir()
    shared.chmod(0o1777)
    (shared / "theirs").symlink_to(folder.parent)
    (tmp_path / "own").symlink_to("shared/theirs")
    paths = [shared / "theirs/mine", tmp_path / "own/mine", shared / "theirs/../between/mine"]
    assert [why_refused(path) for path in paths] == [""] * 3
    os.chown(shared / "theirs", OTHER, -1, follow_symlinks=False)
    assert all(why_refused(path).startswith(f"{shared}/theirs belongs to another user") for path in paths)


def test_links_in_a_circle_end(tmp_path):
    """Protects from a walk that never ends."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        refuse_folder_of_others(tmp_path / "a", os.geteuid(), "")


def test_folders_above_the_checkout_pass(folder, monkeypatch):
    """Protects clones on a volume that everybody may write to, as some hosts of containers have: who can replace the
    results can replace the code. Mutant: no exception."""
    folder.parent.chmod(0o777)
    (code := folder.parent / "clone").mkdir()
    monkeypatch.setattr(folders_of_others, "ROOT", code)
    assert why_refused(folder) == "" == why_refused(code)
    folder.chmod(0o777)
    assert why_refused(folder).startswith("everybody may write to")


@needs_root
@pytest.mark.parametrize(("mapped", "passes"), [(1, True), (2**32 - 1, False)])
def test_unknown_owners_pass_in_a_user_namespace_alone(folder, monkeypatch, mapped, passes):
    """Protects rootless containers, in which the folders of the host's root seem to belong to nobody; and from nobody
    elsewhere. Mutants: the overflow user never, or always, trusted."""
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    os.chown(folder.parent, nobody, -1)
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path: f"0 0 {mapped}\n" if path == Path("/proc/self/uid_map") else read(path)
    )
    assert (why_refused(folder) == "") == passes


@needs_root
@pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare")
def test_a_rootless_container_can_use_its_folders(folder):
    """Protects the suite inside a real user namespace with one user. Mutant: the overflow user never trusted."""
    os.chown(folder.parent, OTHER, -1)
    code = "import os, sys; from pathlib import Path; from benchmarks.common.system.folders_of_others import *; "
    code += "refuse_folder_of_others(Path(sys.argv[1]), os.geteuid(), '')"
    words = ["unshare", "--user", "--map-user=1000", sys.executable, "-c", code, str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    if re.search("unshare failed|Operation not permitted", done.stderr):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
