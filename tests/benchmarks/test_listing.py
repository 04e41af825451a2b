"""The listing of a folder, its index and its fingerprint."""

import os
import shutil
import time
from pathlib import Path

import pytest
from support import NUM_TRAIN
from torchvision.datasets import ImageFolder

from benchmarks.common import listing
from benchmarks.common.listing import fingerprint, index_path, list_images


@pytest.fixture(autouse=True)
def every_listing_is_worth_an_index(own_cache, monkeypatch):
    monkeypatch.setattr(listing, "MIN_INDEXED_IMAGES", 1)
    monkeypatch.setattr(listing, "MIN_FOLDER_AGE_NS", 0)  # nobody can set the time of a folder's change


@pytest.fixture
def settled(own_data) -> Path:
    """With an inner folder, an odd name, and a class that is a link."""
    train = own_data / "train"
    (inner := train / "left" / "an inner folder").mkdir()
    os.link(train / "left" / "left 1.JPEG", inner / "one.JPEG")
    os.link(train / "left" / "left 1.JPEG", os.fsencode(train / "top") + b"/\xff odd.jpeg")
    (train / "top" / "no image.txt").touch()
    (own_data / "elsewhere").mkdir()
    os.link(train / "left" / "left 1.JPEG", own_data / "elsewhere" / "two.JPEG")
    (train / "a link").symlink_to(own_data / "elsewhere")
    time.sleep(0.02)  # the kernel's clock has steps
    return own_data


def is_image_folders(folder: Path) -> bool:
    found, samples = list_images(folder), ImageFolder(str(folder), allow_empty=True).samples
    return [(found.path(n), found.target(n)) for n in range(len(found))] == samples and [*found.targets()] == [
        target for _, target in samples
    ]


def test_images_are_those_of_imagefolder_in_its_order_from_the_index_too(settled, monkeypatch):
    folder = settled / "train"
    assert is_image_folders(folder) and index_path(folder).exists()
    monkeypatch.setattr(listing, "scan_folder", None)  # the second time nobody may list
    assert is_image_folders(folder) and len(list_images(folder)) == NUM_TRAIN + 3


@pytest.mark.parametrize("change", ["a new file", "in an inner folder", "by tar", "damage"])
def test_an_index_is_never_older_than_its_folder(settled, change):
    folder = settled / "train"
    list_images(folder)
    one = folder / "left" / "left 1.JPEG"
    if change == "damage":
        index_path(folder).write_bytes(index_path(folder).read_bytes()[:-1])
    elif change == "by tar":  # which sets the folder's modification time to that in the archive
        times = one.parent.stat()
        shutil.copy(one, one.with_name("left 99.JPEG"))
        os.utime(one.parent, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        os.link(one, (folder / "left" / "an inner folder" if "inner" in change else folder / "top") / "new.JPEG")
    assert is_image_folders(folder)


def test_a_folder_that_was_just_changed_is_not_indexed(settled, monkeypatch):
    """Clocks may be too coarse to tell a second change from the first."""
    monkeypatch.setattr(listing, "MIN_FOLDER_AGE_NS", 3600 * 10**9)
    list_images(settled / "train")
    assert not index_path(settled / "train").exists()


def test_a_cache_that_cannot_be_written_costs_time_only(tiny_data, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert is_image_folders(tiny_data / "train")


def test_a_copy_has_the_same_fingerprint_and_another_set_another_one(settled, tmp_path):
    """Neither paths nor times are in it, so that a training resumes on another machine."""
    before = fingerprint(settled)
    copy = shutil.copytree(settled, tmp_path / "other place" / "copy")
    one = max((copy / "val" / "top").iterdir())  # of images written anew in their place, an index sees first and last
    os.utime(one, (1, 1))
    assert fingerprint(copy) == before
    one.write_bytes(one.read_bytes() + b"more")
    larger = fingerprint(copy)
    one.rename(one.with_name("z.JPEG"))
    renamed = fingerprint(copy)
    one.parent.rename(one.parent.with_name("topmost"))
    assert len({before, larger, renamed, fingerprint(copy)}) == 4
