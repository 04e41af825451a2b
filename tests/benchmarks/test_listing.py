"""The listing of a folder: ImageFolder's order, kept in an index that is as old as the folder and no older.

.venv/bin/python -m pytest tests/benchmarks/test_listing.py     # slow: 1.3 million links
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import NUM_TRAIN, ROOT, loaders
from torchvision.datasets import ImageFolder

from benchmarks.common.data import fingerprint as fingerprints
from benchmarks.common.data import listing
from benchmarks.common.data.fingerprint import cached_fingerprint, fingerprint
from benchmarks.common.data.listing import index_path, list_images
from benchmarks.common.system.errors import UserError
from scripts.runner import run_plan
from scripts.runner.run_status import first_cause


@pytest.fixture(autouse=True)
def every_listing_is_worth_an_index(own_cache, monkeypatch):
    monkeypatch.setattr(listing, "MIN_INDEXED_IMAGES", 1)


@pytest.fixture
def settled(own_data) -> Path:
    """Images in folders that nobody has changed for an hour: one in a folder of its own, one with an odd name."""
    train = own_data / "train"
    inner = train / "left" / "an inner folder"
    inner.mkdir()
    os.link(train / "left" / "left 1.JPEG", inner / "one.JPEG")
    os.link(train / "left" / "left 1.JPEG", os.fsencode(train / "top") + b"/\xff odd.jpeg")
    (train / "top" / "no image.txt").touch()
    (train / "an empty class").mkdir()
    settle(own_data)
    return own_data


def settle(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            os.utime(path, ns=(then := time.time_ns() - 3600 * 10**9, then))


def taken(data: Path) -> str:
    return fingerprint(*(list_images(data / part) for part in ("train", "val")))


def same(found: listing.ImageListing, folder: Path) -> bool:
    samples = ImageFolder(str(folder), allow_empty=True).samples
    numbers = range(len(found))
    return [(found.path(n), found.target(n)) for n in numbers] == samples and [*found.targets()] == [
        target for _, target in samples
    ]


def test_images_are_those_of_imagefolder_in_its_order_from_the_index_too(settled, monkeypatch):
    """Protects every earlier result: image number i stays image number i."""
    folder = settled / "train"
    assert same(list_images(folder), folder)
    assert index_path(folder).exists()
    with monkeypatch.context() as patch:
        patch.setattr(listing, "scan_folder", None)  # the second time nobody may list
        assert same(list_images(folder), folder) and len(list_images(folder)) == NUM_TRAIN + 2


@pytest.mark.parametrize("change", ["a new file", "one less", "renamed", "a new class", "in an inner folder", "damage"])
def test_an_index_is_never_older_than_its_folder(settled, change):
    """Protects from files that are gone or missed."""
    folder = settled / "train"
    list_images(folder)
    one = folder / "left" / "left 1.JPEG"
    if change == "damage":
        index_path(folder).write_bytes(index_path(folder).read_bytes()[:-1])
    elif change == "one less":
        one.unlink()
    elif change == "renamed":
        one.rename(one.with_name("z.JPEG"))
    elif change == "a new class":
        (folder / "zebra").mkdir()
        os.link(one, folder / "zebra" / "1.JPEG")
    else:
        os.link(one, (folder / "left" / "an inner folder" if "inner" in change else folder / "top") / "new.JPEG")
    assert same(list_images(folder), folder)


@pytest.mark.medium
def test_one_flipped_byte_in_an_index_relabels_nothing(settled):
    """Protects labels: a table of class numbers has no other way to be seen wrong. Only filling may change."""
    folder, chance = settled / "train", random.Random(0)
    list_images(folder)
    whole = index_path(folder).read_bytes()
    first = 8 + int.from_bytes(whole[:8], "little")
    for place in [*range(first, len(whole), 7), *(chance.randrange(first) for _ in range(40))]:
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << chance.randrange(8)
        index_path(folder).write_bytes(spoiled)
        assert same(list_images(folder), folder), place
        index_path(folder).write_bytes(whole)


def test_a_folder_that_was_just_changed_is_not_indexed(settled, monkeypatch):
    """Protects from clocks too coarse to tell a second change from the first."""
    monkeypatch.setattr(listing, "MIN_FOLDER_AGE_NS", 2 * 3600 * 10**9)
    list_images(settled / "train")
    assert not index_path(settled / "train").exists()


def test_a_cache_that_cannot_be_written_costs_time_only(settled, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert same(list_images(settled / "train"), settled / "train")
    assert cached_fingerprint(settled) == taken(settled)


def test_the_fingerprint_is_kept_as_long_as_the_listing(settled, monkeypatch):
    """Protects `a run is of these images`: what is kept is what would be taken."""
    expected = taken(settled)
    assert cached_fingerprint(settled) == expected
    with monkeypatch.context() as patch:
        patch.setattr(fingerprints, "_fingerprint_and_stats", None)
        assert cached_fingerprint(settled) == expected
    os.link(settled / "val" / "top" / "top 2.JPEG", settled / "val" / "top" / "another.JPEG")
    assert cached_fingerprint(settled) == taken(settled) != expected


def test_files_that_are_written_again_have_another_fingerprint(tmp_path):
    """Protects `a run is of these images` from a script that writes all images again in place, smaller: no folder's
    time changes then, and the listing holds. Also of a cache that somebody cut off.
    Mutant: the kept fingerprint taken without a look at the files."""
    paths = [
        tmp_path / "set" / part / f"class {number % 3}" / f"{number}.JPEG"
        for part, num_images in (("train", 102), ("val", 6))
        for number in range(num_images)
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"four")
    settle(tmp_path / "set")
    before = cached_fingerprint(tmp_path / "set")
    kept = listing.cache_path(tmp_path / "set", "fingerprint")
    assert before == cached_fingerprint(tmp_path / "set") and kept.exists()
    for path in paths:
        path.write_bytes(b"few")
    after = cached_fingerprint(tmp_path / "set")
    assert after == taken(tmp_path / "set") != before
    for spoilt in ("", "[]", "{}", '{"listed": 3', json.dumps(json.loads(kept.read_text()) | {"files": 3})):
        kept.write_text(spoilt)
        assert cached_fingerprint(tmp_path / "set") == after


def test_a_plan_lists_once_and_then_never_again(settled, monkeypatch):
    """Protects minutes on a network file system: the check and the fingerprint are made of the listing."""
    (settled / "train" / "an empty class").rmdir()
    settle(settled)
    listed, walk = [], listing._walk
    monkeypatch.setattr(listing, "_walk", lambda *place: (listed.append(place[:2]), walk(*place))[1])
    for _ in range(2):
        run_plan._fingerprint.cache_clear()
        assert run_plan._fingerprint(str(settled)).startswith("4-42-23-")
    assert len(listed) == len({*listed}) == 4 + 4 + 1  # the classes of train and val, and a folder within
    scandir, opened = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: (opened.append(Path(path).name), scandir(path))[1])
    run_plan._fingerprint.cache_clear()
    run_plan._fingerprint(str(settled))
    assert opened == ["train", "val"]  # no class folder


def test_an_image_that_is_a_link_to_nowhere_is_reported_by_the_listing(settled):
    (settled / "train" / "top" / "z.JPEG").symlink_to(settled / "gone.JPEG")
    with pytest.raises(UserError, match=r"top/z.JPEG' is a link that leads nowhere: fix it or remove it"):
        list_images(settled / "train")


def test_what_is_no_file_is_refused_by_the_listing_without_a_look_at_files(settled, monkeypatch):
    """Protects from a loader that waits for a FIFO's writer, and a network file system from a stat of 1.3 million
    files. Mutant: os.stat or os.path.isfile of each image."""
    looked, stat = [], os.stat
    monkeypatch.setattr(os, "stat", lambda path, **named: (looked.append(os.fspath(path)), stat(path, **named))[1])
    list_images(settled / "train")
    assert not [path for path in looked if path.lower().endswith("jpeg")]
    fifo = settled / "train" / "top" / "z.JPEG"
    os.mkfifo(fifo)
    with pytest.raises(UserError, match=r"top/z.JPEG' is not a regular file: fix it or remove it"):
        list_images(settled / "train")
    fifo.unlink()
    fifo.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=r"top/z.JPEG' is not a regular file: fix it or remove it"):
        list_images(settled / "train")


def test_class_folders_that_are_links_are_those_of_imagefolder(settled, tmp_path):
    """Protects people who link a shared data set: links of classes, two to one folder, too, and of folders in them.
    Mutant: a folder that another class has is refused."""
    linked = tmp_path / "linked"
    (linked / "own class").mkdir(parents=True)
    for name, target in (("left", "left"), ("top", "top"), ("again", "left"), ("own class/inner", "left")):
        (linked / name).symlink_to(settled / "train" / target)
    assert same(list_images(linked), linked)


@pytest.mark.parametrize("links", [False, True])
def test_no_data_set_keeps_its_listing_from_ending(settled, tmp_path, links):
    """Protects a finished run, after which the images are listed, from the data set's owner: 1,100 folders in each
    other ended it by RecursionError, and two links in each of 30 folders make 2^30 paths. Mutants: no MAX_DEPTH; no
    look at the folders that were seen."""
    inner = settled / "train" / "left"
    for _ in range(30 if links else 100):
        inner = inner / "d"
        inner.mkdir()
        if links:
            (inner / "a").symlink_to("d")
            (inner / "b").symlink_to("d")
    if links:
        (inner / "d").mkdir()
    with pytest.raises(UserError, match="leads by symbolic links to" if links else "lies more than 64 folders deep"):
        list_images(settled / "train")


CUT_SHORT = """
import os, sys
from pathlib import Path
from benchmarks.common.data import listing
found = listing.list_images(Path(sys.argv[1]))
os.truncate(listing.index_path(Path(sys.argv[1])), 0)
found.path(0)
"""


def test_an_index_that_is_truncated_under_a_rank_is_reported(settled):
    """Protects a run's row: a bus error alone tells nobody of the index, which then is written anew.
    Mutant: the signal's number without a sentence."""
    list_images(settled / "train")
    rank = subprocess.run([sys.executable, "-c", CUT_SHORT, str(settled / "train")], cwd=ROOT, capture_output=True)
    assert rank.returncode == -signal.SIGBUS
    status, reason = first_cause([], "", rank.returncode, [], num_ranks=1, is_rank=True)
    assert status == "failed" and reason.startswith("rank 0: signal 7 (bus error): a file that it had mapped was cut")
    of_torchrun = "  rank      : 1 (local_rank: 1)\n  exitcode  : -7 (pid: 4711)\n"
    assert first_cause([], of_torchrun, 1, [], num_ranks=2)[1] == reason.replace("rank 0", "rank 1")
    assert same(list_images(settled / "train"), settled / "train")


def test_loaders_read_from_the_index(settled):
    """Protects the way to the pixels: names, classes and targets from the mapped file."""
    (settled / "train" / "an empty class").rmdir()
    settle(settled)
    for _ in range(2):
        train, _ = loaders(settled, global_batch=42)
        assert len(next(iter(train))[1]) == 42
    assert index_path(settled / "train").exists()


COSTS = """
import json, sys, time
from pathlib import Path
from benchmarks.common.data.listing import list_images

def own_mb():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) / 1e3 * 1.024

before, began_s = own_mb(), time.process_time()
parts = [list_images(Path(sys.argv[1]) / part) for part in ("train", "val")]
print(json.dumps([sum(map(len, parts)), time.process_time() - began_s, own_mb() - before]))
"""


def link_images(folder: Path, num_images: int, num_classes: int = 1000, num_files: int = 400) -> None:
    """Hard links to a few small files; ext4 allows a file 65,000 names."""
    files = [folder.parent / f"{number}.JPEG" for number in range(num_files)]
    for file in files:
        file.write_bytes(b"\xff\xd8\xff\xd9")
    for number in range(num_images):
        place = folder / f"n{number % num_classes:08d}"
        place.mkdir(parents=True, exist_ok=True)
        os.link(files[number % num_files], place / f"{number}.JPEG")


@pytest.mark.slow
def test_imagenets_size_costs_a_rank_nothing(tmp_path):
    """Protects start-up and memory at 1.3 million files: a rank that finds an index takes a twentieth of the processor
    time of the one that writes it, and 5 MB."""
    root = tmp_path / "links"
    root.mkdir()
    link_images(root / "train", 1_281_167)
    link_images(root / "val", 50_000)
    settle(root)

    def measure() -> list:
        command = [sys.executable, "-c", COSTS, str(root)]
        return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)

    _, seconds_that_write, _ = measure()
    costs = [measure() for _ in range(3)]
    assert {num_images for num_images, _, _ in costs} == {1_331_167}
    assert min(seconds for _, seconds, _ in costs) < seconds_that_write / 20
    assert max(megabytes for _, _, megabytes in costs) < 5
