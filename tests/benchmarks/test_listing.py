"""The listing of a folder, its index and its fingerprint, which are as old as the folder and no older.

.venv/bin/python -m pytest tests/benchmarks/test_listing.py     # slow: 1.3 million links
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import NUM_TRAIN, ROOT, loaders
from torchvision.datasets import ImageFolder

from benchmarks.common import listing
from benchmarks.common.listing import fingerprint, index_path, list_images
from scripts.runner import plan


@pytest.fixture(autouse=True)
def every_listing_is_worth_an_index(own_cache, monkeypatch):
    monkeypatch.setattr(listing, "MIN_INDEXED_IMAGES", 1)
    monkeypatch.setattr(listing, "MIN_FOLDER_AGE_NS", 0)  # nobody can set the time of a folder's change


@pytest.fixture
def settled(own_data) -> Path:
    """Images in folders that nobody has changed lately: one in a folder of its own, one with an odd name."""
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
    time.sleep(0.02)  # the kernel's clock has steps


def same(found: listing.ImageListing, folder: Path) -> bool:
    samples = ImageFolder(str(folder), allow_empty=True).samples
    numbers = range(len(found))
    return [(found.path(n), found.target(n)) for n in numbers] == samples and [*found.targets()] == [
        target for _, target in samples
    ]


def test_images_are_those_of_imagefolder_in_its_order_from_the_index_too(settled, monkeypatch):
    """Image number i stays image number i."""
    folder = settled / "train"
    assert same(list_images(folder), folder)
    assert index_path(folder).exists()
    with monkeypatch.context() as patch:
        patch.setattr(listing, "scan_folder", None)  # the second time nobody may list
        assert same(list_images(folder), folder) and len(list_images(folder)) == NUM_TRAIN + 2


@pytest.mark.parametrize("change", ["a new file", "one less", "renamed", "a new class", "in an inner folder", "damage"])
def test_an_index_is_never_older_than_its_folder(settled, change):
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


def test_images_that_tar_unpacks_into_an_indexed_folder_are_counted(settled):
    """tar sets the folders' modification times to those in the archive, which may be the same."""
    folder = settled / "train" / "left"
    before = len(list_images(settled / "train"))
    times = folder.stat()
    shutil.copy(folder / "left 1.JPEG", folder / "left 99.JPEG")
    os.utime(folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(list_images(settled / "train")) == before + 1


def test_a_folder_that_was_just_changed_is_not_indexed(settled, monkeypatch):
    """Clocks may be too coarse to tell a second change from the first."""
    monkeypatch.setattr(listing, "MIN_FOLDER_AGE_NS", 2 * 3600 * 10**9)
    list_images(settled / "train")
    assert not index_path(settled / "train").exists()


def test_a_cache_that_cannot_be_written_costs_time_only(settled, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert same(list_images(settled / "train"), settled / "train")


def test_of_several_processes_one_lists(settled, monkeypatch):
    """Protects the start of many ranks on a network file system: the others wait, and read the index."""
    listed, walk = [], listing._walk
    monkeypatch.setattr(listing, "_walk", lambda *place: (time.sleep(0.05), listed.append(place), walk(*place))[2])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(list_images, [settled / "train"] * 4))
    assert len(listed) == len({*listed}) and all(same(one, settled / "train") for one in found)


def test_class_folders_that_are_links_are_those_of_imagefolder(settled, tmp_path):
    """People link a shared data set: links of classes, two to one folder, too, and of folders in them."""
    linked = tmp_path / "linked"
    (linked / "own class").mkdir(parents=True)
    for name, target in (("left", "left"), ("top", "top"), ("again", "left"), ("own class/inner", "left")):
        (linked / name).symlink_to(settled / "train" / target)
    assert same(list_images(linked), linked)


def test_a_plan_lists_once_and_then_never_again(settled, monkeypatch):
    """It takes minutes on a network file system: the check and the fingerprint are made of the listing."""
    (settled / "train" / "an empty class").rmdir()
    settle(settled)
    listed, walk = [], listing._walk
    monkeypatch.setattr(listing, "_walk", lambda *place: (listed.append(place), walk(*place))[1])
    for _ in range(2):
        plan._fingerprint.cache_clear()
        assert plan._fingerprint(str(settled)).startswith("4-42-23-")
    assert len(listed) == len({*listed}) == 4 + 4 + 1  # the classes of train and val, and a folder within
    scandir, opened = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: (opened.append(Path(path).name), scandir(path))[1])
    plan._fingerprint.cache_clear()
    plan._fingerprint(str(settled))
    assert opened == []


def test_loaders_read_from_the_index(settled):
    (settled / "train" / "an empty class").rmdir()
    settle(settled)
    for _ in range(2):
        train, _ = loaders(settled, global_batch=42)
        assert len(next(iter(train))[1]) == 42
    assert index_path(settled / "train").exists()


# --- the fingerprint ----------------------------------------------------------------------------------------------


def test_a_copy_elsewhere_has_the_same_fingerprint(settled, tmp_path):
    """Neither paths nor times are in it, so that a training resumes on another machine."""
    copy = shutil.copytree(settled, tmp_path / "other place" / "copy")
    (copy / "train" / "left" / "notes.txt").write_text("no image")
    for path in copy.rglob("*.JPEG"):
        os.utime(path, (1, 1))
    assert fingerprint(copy) == fingerprint(settled)


@pytest.mark.parametrize("change", ["renamed", "one less", "a class renamed", "another size"])
def test_every_other_folder_has_another_fingerprint(settled, change):
    before, one = fingerprint(settled), settled / "val" / "top" / "top 2.JPEG"
    if change == "renamed":
        one.rename(one.with_name("z.JPEG"))
    elif change == "one less":
        one.unlink()
    elif change == "a class renamed":
        one.parent.rename(one.parent.with_name("topmost"))
    else:
        last = sorted(one.parent.iterdir())[-1]
        last.write_bytes(last.read_bytes() + b"more")
    assert fingerprint(settled) != before


COSTS = """
import json, sys, time
from pathlib import Path
from benchmarks.common.listing import list_images

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
    """A rank that finds an index takes a twentieth of the processor time of the one that writes it, and 5 MB."""
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
