"""./bench data import: every source gives the same files, what is damaged is refused, and a killed import goes on."""

import functools
import io
import os
import re
import shutil
import signal
import tarfile
import threading
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
    write_parquet,
    write_table,
    write_webdataset,
)

from benchmarks.common.errors import UserError
from benchmarks.common.listing import fingerprint
from scripts.data import import_images, write_shards
from scripts.data.find_source import TRAIN_TAR
from scripts.data.import_images import ImportOptions
from scripts.data.write_shards import WORKSHOP

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
    before = {path.name for path in target.glob("*")} - {WORKSHOP}
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target))
    assert {path.name for path in target.glob("*")} - {WORKSHOP} == before
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
        archive.extractall(folder / "train", filter="data")
    (folder / TRAIN_TAR).unlink()
    return folder


def unpacked_devkit(folder: Path, data: Path) -> Path:
    """With folders in a class folder, whose images have other endings."""
    write_flat(folder, data, "devkit")
    with tarfile.open(folder / "ILSVRC2012_devkit_t12.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for path in (folder / "train" / CLASSES[0]).iterdir():
        (path.parent / "part0").mkdir(exist_ok=True)
        path.rename(path.parent / "part0" / f"{path.stem}.jfif")
    return folder


OTHERS = {
    "Kaggle's table": functools.partial(write_flat, table="LOC_val_solution.csv"),
    "the tar of train unpacked once": unpacked_train_tar,
    "the devkit unpacked": unpacked_devkit,
}


@pytest.mark.parametrize("kind", [*WRITERS, *OTHERS])
def test_every_source_gives_the_same_images(kind, tmp_path, images, capsys):
    source, target = (WRITERS | OTHERS)[kind](tmp_path / "the downloads", images), tmp_path / "imagenet"
    (source / ".DS_Store").write_bytes(b"of macOS")
    import_all(source, target)
    assert contents(target) == contents(images)
    printed = capsys.readouterr().out
    assert "train: 12 images, " in printed and f"fingerprint {fingerprint(images)}" in printed
    assert re.search(r"entries = 24 images \+ \d+ left out \(.*1 hidden", printed)


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
    assert "does not exist" in refused(tmp_path / "nothing", tmp_path / "imagenet")
    assert "class folders already" in refused(images, tmp_path / "imagenet")
    (tmp_path / "empty").mkdir()
    assert "nothing that can be imported" in refused(tmp_path / "empty", tmp_path / "imagenet")


# --- what is refused: each entry is accounted for, a label comes from one place, a source says how much there is -----


def first_tar(source: Path) -> Path:
    return min(source.glob("*-train-*.tar"))


def tar_of_links(source: Path) -> None:
    """As tar writes the second name of a file that has two."""
    with tarfile.open(first_tar(source), "a") as archive:
        link = tarfile.TarInfo("second.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "first.jpg"
        archive.addfile(link, io.BytesIO())


def half_flat(source: Path) -> None:
    (source / "val" / CLASSES[0]).mkdir()
    (source / "val" / val_name(1)).rename(source / "val" / CLASSES[0] / val_name(1))


def copy_in_place_of_another(source: Path) -> None:
    shutil.copy(source / "val" / val_name(9), source / "val" / f"{val_name(9)[:-5]} (1).JPEG")
    (source / "val" / val_name(5)).unlink()


def error_pages(source: Path) -> None:
    for number in range(5):
        (source / "train" / CLASSES[0] / f"{number}.JPEG").write_bytes(b"an error page")


def line_twice(source: Path) -> None:
    table = source / "val" / "val_annotations.txt"
    table.write_text(table.read_text() + f"{val_name(1)}\t{CLASSES[3]}\n")


def parquet_with(source: Path, name: str) -> None:
    write_table(source / TRAIN_PARQUET, [(name, JPEG, 0)], [*CLASSES])


TRAIN_PARQUET = "data/train-00001-of-00003.parquet"
EVIL_CLASS = {f"{CLASSES[0]}.tar": tar_of({"../../evil.JPEG": JPEG})}
REFUSED = {  # the source, what is wrong with it, and the message
    "a name with ..": ("WebDataset", lambda s: change_tar(first_tar(s), {"../../evil.jpg": JPEG}), "leads out"),
    "a name with .. in one": ("ILSVRC2012's tars", lambda s: change_tar(s / TRAIN_TAR, EVIL_CLASS), "leads out"),
    "Parquet with ..": ("Parquet", lambda s: parquet_with(s, "../../evil.jpg"), "leads out"),
    "no label": ("WebDataset", lambda s: change_tar(first_tar(s), {"x.jpg": JPEG}), "'x' is no sample"),
    "a label that is no class": (
        "WebDataset",
        lambda s: change_tar(first_tar(s), {"x.jpg": JPEG, "x.cls": b"--5"}),
        "'x.cls'.*'--5'",
    ),
    "an image twice": (
        "WebDataset",
        lambda s: change_tar(first_tar(s), {"b/x.jpg": JPEG, "b/x.cls": b"0", "c/x.jpg": JPEG, "c/x.cls": b"0"}),
        "are there twice",
    ),
    "a link in a tar": ("WebDataset", tar_of_links, "is a link"),
    "a tar that is zeros from some place on": (
        "ILSVRC2012's tars",
        lambda s: cut(s / TRAIN_TAR),
        f"{TRAIN_TAR}.*is the download whole",
    ),
    "a compressed shard": ("WebDataset", lambda s: (s / "x-0.tar.gz").touch(), "'x-0.tar.gz' is no .tar file"),
    "a shard is missing": ("WebDataset", lambda s: (s / "imagenet1k-train-0001.tar").unlink(), "number 1 first"),
    "Parquet that is cut off": ("Parquet", lambda s: cut(s / TRAIN_PARQUET), "is the download whole"),
    "a path and a label of two classes": (
        "Parquet",
        lambda s: parquet_with(s, f"x_{CLASSES[3]}.jpg"),
        f"is {CLASSES[3]} by its path and {CLASSES[0]} by its label",
    ),
    "error pages": ("folder with a flat val", error_pages, f"{CLASSES[0]}/0.JPEG' is no image.*and 2 more"),
    "loose images beside class folders": ("folder with a flat val", half_flat, "lies beside class folders"),
    "a copy in the place of another": (
        "the devkit unpacked",
        copy_in_place_of_another,
        r"there: \[5\] of 1;.*9 \(1\).JPEG",
    ),
    "an image with two lines": ("folder with a flat val", line_twice, "line 13: .* is there twice"),
    "images of a table that are not there": (
        "folder with a flat val",
        lambda s: (s / "val" / val_name(4)).unlink(),
        "has 12 images; not there",
    ),
    "a class without an image": (
        "ILSVRC2012's tars",
        lambda s: change_tar(s / TRAIN_TAR, {"n09999999.tar": tar_of({})}),
        "n09999999.tar has no image",
    ),
    "two classes of one name": (
        "WebDataset",
        lambda s: (s / "classes.txt").write_text("crane bird\ncrane machine\nbird\nmachine\n"),
        "has 'crane' twice",
    ),
    "two lists of classes": (
        "WebDataset",
        lambda s: (s / "synsets.txt").write_text("".join(f"{name}\n" for name in CLASSES[::-1])),
        "have other classes",
    ),
    "a class of val that train lacks": (
        "Parquet",
        lambda s: write_table(s / "data/validation-00001-of-00003.parquet", [("1.jpg", JPEG, 0)], ["another"]),
        "val has classes that train lacks: 'another'",
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
    outside = {path for path in contents(tmp_path) if f"imagenet/{WORKSHOP}/" not in path and "a cache/" not in path}
    assert outside == before.keys()


def test_a_set_that_is_there_is_left_alone(tmp_path, images):
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    (target / "val").mkdir(parents=True)
    assert "is there already" in refused(source, target) and not (target / WORKSHOP).exists()


def test_it_stops_before_the_disk_is_full_and_goes_on(tmp_path, images, monkeypatch):
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    whole = first_tar(source).read_bytes()
    first_tar(source).write_bytes(whole[:700])
    refused(source, target)
    assert "of WebDataset" in refused(write_parquet(tmp_path / "other", images), target)
    first_tar(source).write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(write_shards, "RESERVE_BYTES", 1 << 60)
        assert "GB are needed" in refused(source, target)
    import_all(source, target)
    assert contents(target) == contents(images)


# --- killed, and started again ------------------------------------------------------------------------------------


def kill_with_open_shards(options: ImportOptions) -> int:
    """The exit code of an import in a fork, killed when three shards are open and an image of each is written."""
    child = os.fork()
    if not child:
        barrier = threading.Barrier(3, lambda: os.kill(os.getpid(), signal.SIGKILL), timeout=60)
        images_of = write_shards.images_of

        def wait_after_one(*words):
            for number, image in enumerate(images_of(*words)):
                if number == 1:
                    barrier.wait()
                yield image

        try:
            write_shards.images_of, write_shards.num_cores = wait_after_one, lambda: 3
            import_images.main(options)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_killed_import_goes_on(tmp_path, images, capsys):
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    assert kill_with_open_shards(ImportOptions(source, target)) == -signal.SIGKILL
    (written, *_) = (target / WORKSHOP).rglob("*.JPEG")
    written.write_bytes(bytes(1 << 20))  # more than the image has
    import_all(source, target)
    assert "going on after 0 shards" in capsys.readouterr().out
    assert contents(target) == contents(images)


def test_an_import_that_is_stopped_at_its_end_ends_when_it_is_started_again(tmp_path, images, monkeypatch):
    """What is finished is not read again."""
    source, target = write_webdataset(tmp_path / "from", images), tmp_path / "imagenet"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(write_shards.shutil, "rmtree", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        import_images.main(ImportOptions(source, target))
    shard = first_tar(source)
    status = shard.stat()
    shard.write_bytes(bytes(status.st_size))  # whoever reads it finds no tar
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    import_all(source, target)
    assert contents(target) == contents(images)
