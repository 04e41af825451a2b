"""./bench data import: every source gives the same files, and what is damaged is refused."""

import functools
import re
import shutil
import tarfile
import types
from pathlib import Path

import pytest
from data.sources import (
    CLASSES,
    WRITERS,
    jpeg,
    tar_of,
    val_name,
    write_flat,
    write_ilsvrc,
    write_images,
    write_table,
    write_webdataset,
)

from benchmarks.common.errors import UserError
from benchmarks.common.listing import fingerprint
from scripts.data import import_images, write_shards
from scripts.data.find_source import TRAIN_TAR
from scripts.data.import_images import ImportOptions

JPEG = jpeg(99)
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def images(tmp_path) -> Path:
    return write_images(tmp_path / "images")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def import_all(source: Path, target: Path, **changes) -> None:
    assert import_images.main(ImportOptions(source, target, **changes)) == 0


def refused(source: Path, target: Path) -> str:
    """The message of a refused import, which leaves no half of a set."""
    before = contents(target)
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target))
    assert contents(target) == before
    return str(caught.value)


def change_tar(path: Path, more: dict[str, bytes]) -> None:
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member).read() for member in archive}
    path.write_bytes(tar_of(files | more))


def cut(path: Path) -> None:
    """As a download whose space was allocated: zeros are also how a tar ends."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2].ljust(len(content), b"\0"))


# --- the sources --------------------------------------------------------------------------------------------------


def unpacked_train_tar(folder: Path, data: Path) -> Path:
    write_ilsvrc(folder, data)
    with tarfile.open(folder / TRAIN_TAR) as archive:
        archive.extractall(folder / "train")
    (folder / TRAIN_TAR).unlink()
    return folder


def with_devkit(folder: Path, data: Path) -> Path:
    """With folders in a class folder, whose images have other endings."""
    write_flat(folder, data, "devkit")
    for path in (folder / "train" / CLASSES[0]).iterdir():
        (path.parent / "part0").mkdir(exist_ok=True)
        path.rename(path.parent / "part0" / f"{path.stem}.jfif")
    return folder


OTHERS = {
    "Kaggle's table": functools.partial(write_flat, table="LOC_val_solution.csv"),
    "the tar of train unpacked once": unpacked_train_tar,
    "a flat val with the devkit": with_devkit,
}


@pytest.mark.parametrize("kind", [*WRITERS, *OTHERS])
def test_every_source_gives_the_same_images(kind, tmp_path, images, capsys):
    source, target = (WRITERS | OTHERS)[kind](tmp_path / "the downloads", images), tmp_path / "imagenet"
    (source / ".DS_Store").write_bytes(b"of macOS")
    import_all(source, target)
    assert contents(target) == contents(images)
    printed = capsys.readouterr().out
    assert "train: 12 images" in printed and f"fingerprint {fingerprint(images)}" in printed


def test_a_flat_val_joins_a_train_that_is_there(tmp_path, images):
    source, target = write_flat(tmp_path / "from", images), tmp_path / "imagenet"
    target.mkdir()
    (source / "train").rename(target / "train")
    import_all(source, target)
    assert contents(target) == contents(images)


def test_labels_without_names_need_a_list(tmp_path, images):
    """Its lines begin with the names, and may begin with the mark of UTF-8."""
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    names = (source / "classes.txt").read_text()
    (source / "classes.txt").unlink()
    assert "--classes" in refused(source, target)
    (tmp_path / "wnids").write_text(names.replace("\n", " some words\n"), encoding="utf-8-sig")
    import_all(source, target, classes=tmp_path / "wnids")
    assert contents(target) == contents(images)


def test_what_is_no_source_is_refused(tmp_path, images):
    assert "class folders already" in refused(images, tmp_path / "imagenet")
    (tmp_path / "empty").mkdir()
    assert "nothing that can be imported" in refused(tmp_path / "empty", tmp_path / "imagenet")


def first_tar(source: Path) -> Path:
    return min(source.glob("*-train-*.tar"))


def half_flat(source: Path) -> None:
    (source / "val" / CLASSES[0]).mkdir()
    (source / "val" / val_name(1)).rename(source / "val" / CLASSES[0] / val_name(1))


def copy_in_place_of_another(source: Path) -> None:
    shutil.copy(source / "val" / val_name(9), source / "val" / f"{val_name(9)[:-5]} (1).JPEG")
    (source / "val" / val_name(5)).unlink()


def error_pages(source: Path) -> None:
    for number in range(5):
        (source / "train" / CLASSES[0] / f"{number}.JPEG").write_bytes(b"an error page")


TRAIN_PARQUET = "data/train-00001-of-00003.parquet"
REFUSED = {  # the source, what is wrong with it, and the message
    "a name with ..": ("WebDataset", lambda s: change_tar(first_tar(s), {"../../evil.jpg": JPEG}), "leads out"),
    "Parquet with ..": (
        "Parquet",
        lambda s: write_table(s / TRAIN_PARQUET, [("../../evil.jpg", JPEG, 0)], [*CLASSES]),
        "leads out",
    ),
    "no label": ("WebDataset", lambda s: change_tar(first_tar(s), {"x.jpg": JPEG}), "'x' is no sample"),
    "a label that is no class": (
        "WebDataset",
        lambda s: change_tar(first_tar(s), {"x.jpg": JPEG, "x.cls": b"--5"}),
        "'x.cls'.*'--5'",
    ),
    "an image twice": (
        "WebDataset",
        lambda s: change_tar(first_tar(s), {"b/x.jpg": JPEG, "b/x.cls": b"0", "c/x.jpg": JPEG, "c/x.cls": b"0"}),
        "x.JPEG is there twice",
    ),
    "a tar that is zeros from some place on": (
        "ILSVRC2012's tars",
        lambda s: cut(s / TRAIN_TAR),
        f"{TRAIN_TAR}.*is the download whole",
    ),
    "a compressed shard": ("WebDataset", lambda s: (s / "x-0.tar.gz").touch(), "'x-0.tar.gz' are beside .tar files"),
    "Parquet that is cut off": ("Parquet", lambda s: cut(s / TRAIN_PARQUET), "is the download whole"),
    "error pages": ("folder with a flat val", error_pages, f"{CLASSES[0]}/.*JPEG' is no image"),
    "loose images beside class folders": (
        "folder with a flat val",
        half_flat,
        f"val/{CLASSES[0]}/.* are beside .*a flat val",
    ),
    "a copy in the place of another": (
        "a flat val with the devkit",
        copy_in_place_of_another,
        r"do not match: '5', '.*9 \(1\)'",
    ),
    "two classes of one name": (
        "WebDataset",
        lambda s: (s / "classes.txt").write_text("crane bird\ncrane machine\nbird\nmachine\n"),
        "has 'crane' twice",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_damaged_or_not_understood_is_refused(tmp_path, images, case):
    """Nothing is written outside of TO."""
    kind, damage, expected = REFUSED[case]
    folder = tmp_path / "in" / "here"
    folder.mkdir(parents=True)
    source = (WRITERS | OTHERS)[kind](folder / "from", images)
    damage(source)
    before = contents(tmp_path)
    message = refused(source, folder / "imagenet")
    assert re.search(expected, message), message
    assert {path for path in contents(tmp_path) if "a cache/" not in path} == before.keys()


def test_a_set_that_is_there_is_left_alone(tmp_path, images):
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    (target / "val").mkdir(parents=True)
    assert "is there already" in refused(source, target)


def test_it_stops_before_the_disk_is_full(tmp_path, images, monkeypatch):
    monkeypatch.setattr(write_shards.shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=100))
    assert "GB are needed" in refused(write_webdataset(tmp_path / "from", images), tmp_path / "imagenet")
