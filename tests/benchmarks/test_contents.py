"""The name of the images' bytes: another for each replaced image, of a large set for a replaced part; kept in the cache
only while the files are as they were.

.venv/bin/python -m pytest tests/benchmarks/test_contents.py
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from start_up_times import make_images, start_up_row
from support import ROOT

from benchmarks.common.data import contents
from benchmarks.common.data.contents import CONTENTS, cached_contents, contents_from_hashes, hash_images, image_hash
from benchmarks.common.data.fingerprint import cached_fingerprint, file_stat
from benchmarks.common.data.listing import cache_path, list_images

HOUR_NS = 3600 * 10**9
JPEG = b"\xff\xd8\xff"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def images(tmp_path) -> Path:
    """Two classes of 40 and of 10 training images, and 10 validation images. All files have one size."""
    folder = tmp_path / "a set"
    for part, name, number in (("train", "a", 40), ("train", "b", 10), ("val", "a", 10)):
        (folder / part / name).mkdir(parents=True)
        for index in range(number):
            (folder / part / name / f"{index:02}.JPEG").write_bytes(
                JPEG + b"%s %s %02d" % (part.encode(), b"x" * 10, index)
            )
    return folder


def taken(folder: Path) -> str:
    return hash_images(*(list_images(folder / part) for part in ("train", "val")))[0]


def stated_hash(path: Path) -> bytes:
    return image_hash(hashlib.sha256(path.read_bytes()).digest(), path.read_bytes())


def test_a_replaced_image_of_the_same_size_is_seen(images, tmp_path):
    """Protects from pooling runs on other images: 456 of 480 had been replaced, and the fingerprint was the same.
    Mutants: the digest without the bytes; without the names; one class only."""
    before, name = taken(images), cached_fingerprint(images)
    assert CONTENTS.fullmatch(before) and before.startswith("60-of-60-")
    copy = shutil.copytree(images, tmp_path / "elsewhere" / "copy")
    assert taken(copy) == before
    for path in (copy / "train/b/05.JPEG", copy / "val/a/09.JPEG"):
        text = path.read_bytes()
        path.write_bytes(text.replace(b"x", b"y", 1))
        assert taken(copy) != before and cached_fingerprint(copy) == name
        path.write_bytes(text)
    first, second = copy / "train/a/01.JPEG", copy / "train/a/02.JPEG"
    first.rename(copy / "aside")
    second.rename(first)
    (copy / "aside").rename(second)
    assert taken(copy) != before
    last = images / "train/a/39.JPEG"
    last.rename(last.with_name("39 renamed.JPEG"))  # in the same place
    assert taken(images) != before


def test_what_is_no_image_is_named_and_not_read(images, capsys):
    """Protects the start of a suite from a sparse file of 4 TB, which was hashed for hours. Mutant: no limit."""
    path = images / "train/a/07.JPEG"
    os.truncate(path, 1 << 42)
    assert taken(images).startswith("60-of-60-")
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "a set/train/a/07.JPEG' (it has 4398046511104 bytes" in error


def test_a_file_that_is_no_image_leaves_no_trace_of_its_bytes(images, tmp_path, capsys):
    """Protects a private file to which a data set has a link: `contents` is published, and its hash could be guessed
    where the file has few bytes. The name of images is what it always was. Mutants: the first bytes not looked at; the
    hash of a packed import without the same look."""
    unchanged = hashlib.sha256()
    for path in sorted(images.rglob("*.JPEG")):
        name = path.relative_to(images).as_posix().encode()
        unchanged.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    assert taken(images) == f"60-of-60-{unchanged.hexdigest()[:16]}" and not capsys.readouterr().err
    secret, place = tmp_path / "pin", images / "train/a/07.JPEG"
    place.unlink()
    place.symlink_to(secret)
    secret.write_text("7391\n")
    before = taken(images)
    assert "train/a/07.JPEG' (its first bytes are of neither a JPEG nor a PNG)" in capsys.readouterr().err
    secret.write_text("1234\n")
    assert taken(images) == before
    both = [list_images(images / part) for part in ("train", "val")]
    assert contents_from_hashes(*both, lambda name: stated_hash(images / name)) == before


@pytest.mark.real_interpreter  # which gets the signal itself
def test_a_stop_ends_the_hashing(images, tmp_path):
    """Protects ^C: the pool hashed every image that was left before the process ended. Mutants: no stop; what waits is
    not cancelled."""
    for path in images.rglob("*.JPEG"):
        os.truncate(path, 1 << 28)  # 16 GB of nothing: half a minute of two cores
    program = (
        "import os, pathlib, signal, sys, threading; from benchmarks.common.data import contents as c, listing\n"
        "folder = pathlib.Path(sys.argv[1]); opened, real, once = [], c.open_regular_file, threading.Lock()\n"
        "def first(path):\n"
        "    opened.append(path)\n"
        "    if once.acquire(blocking=False): os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(path)\n"
        "c.open_regular_file = first\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where the tests run in the background
        "try: c.hash_images(*(listing.list_images(folder / part) for part in ('train', 'val')))\n"
        "except KeyboardInterrupt: print('stopped', len(opened))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, images], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    stopped, num_opened = done.stdout.split()
    assert stopped == "stopped" and int(num_opened) <= contents.LISTING_THREADS, done.stderr


def test_of_many_images_each_class_has_its_share_in_the_sample(images, monkeypatch):
    """Protects the minutes that hashing ImageNet takes, and the words: the name says how many were hashed."""
    monkeypatch.setattr(contents, "MAX_HASHED_IMAGES", 12)
    value, stats = hash_images(*(list_images(images / part) for part in ("train", "val")))
    assert value.startswith("12-of-60-")
    chosen = [Path(path).relative_to(images.resolve()).as_posix() for path in stats]
    counts = {below: sum(path.startswith(below) for path in chosen) for below in ("train/a", "train/b", "val/a")}
    assert counts == {"train/a": 8, "train/b": 2, "val/a": 2}
    places = [int(Path(path).stem) for path in chosen if path.startswith("train/a")]
    assert places == [2, 7, 12, 17, 22, 27, 32, 37]
    for path in images.rglob("*.JPEG"):  # 19 of 20 replaced, as in the set of the report
        if path.stem != "00":
            path.write_bytes(path.read_bytes().replace(b"x", b"y"))
    assert taken(images) != value


def settle(folder: Path, monkeypatch) -> None:
    """As if all of it had been left alone for an hour."""
    now = time.time_ns()
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, ns=(now - HOUR_NS, now - HOUR_NS))
    monkeypatch.setattr(contents.time, "time_ns", lambda: now + HOUR_NS)  # no clock can set a file's ctime


def test_a_link_that_leads_to_a_copy_has_the_copys_contents(images, tmp_path, monkeypatch):
    """Protects from one name for two data sets: train/ was a link, which was turned to a copy with other images and the
    same times. Mutant: the times of the listing alone."""
    settle(images, monkeypatch)
    copy = Path(shutil.copytree(images, tmp_path / "copy"))  # with the times of files and folders
    for path in (copy / "train/a").iterdir():
        path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))
    (data := tmp_path / "linked").mkdir()
    for part in ("train", "val"):
        (data / part).symlink_to(images / part)
    before = cached_contents(data)
    (data / "train").unlink()
    (data / "train").symlink_to(copy / "train")
    assert cached_contents(data) != before == taken(images)


def test_it_is_hashed_once_and_again_after_a_change(images, monkeypatch):
    """Protects the start of each run, and the truth of what is kept: also where size and mtime are as they were.
    Mutants: the kept value taken unseen; ctime left out; size and mtime left out is caught by the copy of times."""
    settle(images, monkeypatch)
    before, hashed, hash_file = cached_contents(images), [], contents._hash_file
    monkeypatch.setattr(contents, "_hash_file", lambda path, stop: (hashed.append(path), hash_file(path, stop))[1])
    assert cached_contents(images) == before and not hashed
    path = images / "train" / "a" / "07.JPEG"
    stat = path.stat()
    path.write_bytes(path.read_bytes().replace(b"x", b"y", 1))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as rsync -a or a restored backup leaves it
    after = cached_contents(images)
    assert after != before and len(hashed) == 60
    assert cached_contents(images) == after and len(hashed) == 60
    kept = cache_path(images, "contents")
    for spoilt in ("", "[]", "{}", kept.read_text().replace('"files": {', '"files": {"/gone": [1, 2, 3], ')):
        kept.write_text(spoilt)
        assert cached_contents(images) == after


def test_files_that_their_writer_has_hashed_are_not_read(images, monkeypatch, capsys):
    """Protects the end of an import, and what is kept. Where a file was not hashed, has changed, or is no image, all
    are read. Mutants: each of the three not looked at; what was just written is kept."""
    expected = cached_contents(images)
    hashed = {
        path.relative_to(images).as_posix(): (stated_hash(path), file_stat(str(path))) for path in images.glob("*/*/*")
    }
    name = "train/a/07.JPEG"
    (stat := [*hashed[name][1]])[2] -= 1
    read, hash_file = [], contents._hash_file
    monkeypatch.setattr(contents, "_hash_file", lambda path, stop: (read.append(path), hash_file(path, stop))[1])
    assert cached_contents(images, hashed) == expected and not read
    assert not cache_path(images, "contents").exists()
    without = {other: one for other, one in hashed.items() if other != name}
    for some in (
        without,
        hashed | {name: (hashed[name][0], stat)},
        hashed | {name: (contents.UNREADABLE, hashed[name][1])},
    ):
        assert cached_contents(images, some) == expected and len(read) == 60
        read.clear()
    settle(images, monkeypatch)
    settled = {other: (sha256, file_stat(str(images / other))) for other, (sha256, _) in hashed.items()}
    assert cached_contents(images, settled) == expected and cache_path(images, "contents").exists() and not read


def test_the_folder_of_the_start_up_times_is_as_large_as_it_says(tmp_path):
    """Protects the two published times: all images are counted, and later both names come from the cache."""
    data = tmp_path / "many"
    make_images(data, num_classes=3, num_train=10, num_val=4, num_bytes=100)
    assert sorted(len([*folder.iterdir()]) for folder in data.glob("*/*")) == [1, 1, 2, 3, 3, 4]
    row = start_up_row(data, "first")
    assert (row["when"], row["num_images"]) == ("first", 14) and row["contents_s"] > 0


def test_images_that_were_just_written_are_not_kept(images):
    """Protects from clocks too coarse to tell a second change from the first."""
    cached_contents(images)
    assert not cache_path(images, "contents").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all files")
def test_a_file_that_cannot_be_read_is_the_runs_to_say(images):
    (images / "val" / "a" / "03.JPEG").chmod(0)
    assert taken(images).startswith("60-of-60-")
