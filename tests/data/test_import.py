"""./bench data import: every source gives the same files, damaged ones give none, and a killed import goes on.

.venv/bin/python -m pytest tests/data
"""

import io
import json
import os
import re
import shutil
import signal
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from data.killed_import import kill_with_open_shards, together
from data.sources import HUB_IMAGE, WRITERS, add, numbered, write_flat, write_ilsvrc, write_parquet, write_webdataset
from support import NUM_TRAIN, NUM_VAL, loaders

from benchmarks.common.errors import UserError
from benchmarks.common.listing import fingerprint
from scripts.data import import_images, progress, write_shards
from scripts.data.check import check_image_folder
from scripts.data.import_images import WORKSHOP, ImportOptions
from scripts.data.parquet import read_row

JPEG = b"\xff\xd8\xff of some bytes"
pytestmark = pytest.mark.usefixtures("own_cache")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def import_all(source: Path, target: Path, **changes) -> None:
    assert import_images.main(ImportOptions(source, target, **changes)) == 0


def refused(source: Path, target: Path, **changes) -> str:
    """The message of a refused import."""
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target, **changes))
    return str(caught.value)


# --- the sources --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_every_source_gives_the_same_images(writer, tmp_path, tiny_data, capsys):
    """Equal bytes, names, fingerprint and first batch."""
    target, data = tmp_path / "imagenet", numbered(tmp_path / "numbered", tiny_data)
    import_all(WRITERS[writer](tmp_path / "the downloads", data), target)
    assert contents(target) == contents(data)
    first, expected = (next(iter(loaders(folder)[0])) for folder in (target, data))
    assert all(torch.equal(*pair) for pair in zip(first, expected, strict=True))
    printed = capsys.readouterr().out
    assert f"{NUM_TRAIN} images of 4 classes" in printed and f"{NUM_VAL} images of 4 classes" in printed
    assert f"fingerprint {fingerprint(data)}" in printed


@pytest.mark.parametrize("table", ["LOC_val_solution.csv", "devkit"])
def test_a_flat_val_folder_has_its_classes_from_any_table(tmp_path, tiny_data, table):
    data = numbered(tmp_path / "numbered", tiny_data)
    import_all(write_flat(tmp_path / "from", data, table), tmp_path / "imagenet")
    assert contents(tmp_path / "imagenet") == contents(data)


def test_a_flat_val_of_its_own_joins_a_train_that_is_there(tmp_path, tiny_data):
    source = write_flat(tmp_path / "from", tiny_data)
    shutil.rmtree(source / "train")
    target = tmp_path / "imagenet"
    shutil.copytree(tiny_data / "train", target / "train")
    import_all(source, target)
    assert contents(target) == contents(tiny_data)


def names_of(inner: str, label: object, classes: list[str]) -> tuple[str, str]:
    row = read_row(inner, label, memoryview(JPEG), classes, "a shard")
    return row.class_name, row.name


def test_the_hubs_names_become_the_official_ones():
    official = ("n01440764", "n01440764_10026.JPEG")
    assert names_of("n01440764_10026_n01440764.JPEG", 0, ["tench, Tinca tinca"]) == official
    of_val = names_of("ILSVRC2012_val_00000001_n01751748.JPEG", 65, [])
    assert of_val == ("n01751748", "ILSVRC2012_val_00000001.JPEG")
    assert names_of("a/n01440764_10026.jpg", 1, ["n0", "n01440764"]) == official


def test_words_as_classes_need_a_list(tmp_path, tiny_data):
    source = write_webdataset(tmp_path / "from", tiny_data)
    names = (source / "classes.txt").read_text()
    (source / "classes.txt").unlink()
    assert "--classes" in refused(source, tmp_path / "imagenet")
    with pytest.raises(UserError, match="'tench, Tinca tinca' cannot be a folder; name by --classes"):
        names_of("1.jpg", 0, ["tench, Tinca tinca"])
    (tmp_path / "wnids").write_text(names.replace("\n", " some words\n"))
    import_all(source, tmp_path / "imagenet", classes=tmp_path / "wnids")
    assert contents(tmp_path / "imagenet") == contents(tiny_data)


def test_a_test_split_is_left_out(tmp_path, tiny_data, capsys):
    source = write_parquet(tmp_path / "from", tiny_data)
    (source / "data" / "test-00000-of-00001.parquet").write_bytes(b"labels of -1")
    import_all(source, tmp_path / "imagenet")
    entries = NUM_TRAIN + NUM_VAL + 1
    left_out = "1 left out (1 of test, which has no labels)"
    assert f"{entries} entries = {entries - 1} images + {left_out}" in capsys.readouterr().out


def test_shards_may_be_links(tmp_path, tiny_data):
    """As in the hub's cache, whose snapshots/ has links to blobs/, and where a folder lies on another disk."""
    plain = write_parquet(tmp_path / "plain", tiny_data)
    snapshot = tmp_path / "datasets--a--b/snapshots/0123abc"
    blobs = snapshot.parent.parent / "blobs"
    (snapshot / "data").mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted((plain / "data").iterdir())):
        path.rename(blobs / str(number))
        (snapshot / "data" / path.name).symlink_to(f"../../../blobs/{number}")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/data").symlink_to(snapshot / "data")
    (tmp_path / "linked/data again").symlink_to(snapshot / "data")
    for source in (snapshot, tmp_path / "linked"):
        target = tmp_path / f"from {source.name}"
        import_all(source, target)
        assert contents(target) == contents(tiny_data)


def test_what_is_no_source_is_refused(tmp_path, tiny_data):
    assert "does not exist" in refused(tmp_path / "nothing", tmp_path / "imagenet")
    assert "class folders already" in refused(tiny_data, tmp_path / "imagenet")
    (tmp_path / "empty").mkdir()
    assert "nothing that can be imported" in refused(tmp_path / "empty", tmp_path / "imagenet")
    assert not (tmp_path / "imagenet").exists()


# --- what is refused ----------------------------------------------------------------------------------------------


def tar_with(path: Path, name: str = "good.jpg") -> None:
    """A tar of one good sample and one more member."""
    with tarfile.open(path, "w") as archive:
        add(archive, "first.jpg", JPEG)
        add(archive, "first.cls", b"0")
        add(archive, name, JPEG)


def tar_with_label(path: Path, label: bytes) -> None:
    with tarfile.open(path, "w") as archive:
        add(archive, "one.jpg", JPEG)
        add(archive, "one.cls", label)


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def twice(path: Path) -> None:
    tar_with(path, "b/first.jpg")
    with tarfile.open(path, "a") as archive:
        add(archive, "b/first.cls", b"0")


def tar_of_links(path: Path) -> None:
    """As tar writes the second name of a file that has two."""
    with tarfile.open(path, "w") as archive:
        add(archive, "first.jpg", JPEG)
        add(archive, "first.cls", b"0")
        add(archive, "second.jpg", b"", type=tarfile.LNKTYPE, linkname="first.jpg")
        add(archive, "second.cls", b"0")


def parquet_with(
    path: Path, inner: str = "1.jpg", label: int = 0, classes: tuple[str, ...] = ("left",), content: bytes = JPEG
) -> None:
    features = {"label": {"names": classes}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", HUB_IMAGE), ("label", pyarrow.int64())], metadata=metadata)
    images = pyarrow.array([{"bytes": content, "path": inner}], HUB_IMAGE)
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": [label]}, schema), path)


def nested(path: Path, name: str) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        add(archive, "../../evil.JPEG", JPEG)
    with tarfile.open(path, "w") as archive:
        add(archive, name, inner.getvalue())


TAR, TRAIN_TAR, PARQUET = "a-train-0.tar", "ILSVRC2012_img_train.tar", "train-0.parquet"
REFUSED = {
    "a name with ..": (TAR, lambda path: tar_with(path, "../../evil.jpg"), "leads out of the folder"),
    "an absolute name": (TAR, lambda path: tar_with(path, "/tmp/evil.jpg"), "leads out of the folder"),
    "a class tar with ..": (TRAIN_TAR, lambda path: nested(path, "../left.tar"), "leads out of the folder"),
    "a name with .. in a class tar": (TRAIN_TAR, lambda path: nested(path, "left.tar"), "leads out of the folder"),
    "Parquet with ..": (PARQUET, lambda path: parquet_with(path, "../../evil.jpg"), "leads out of the folder"),
    "Parquet with a class of ..": (PARQUET, lambda path: parquet_with(path, classes=("../..",)), "cannot be a folder"),
    "a label that is no class": (TAR, lambda path: tar_with_label(path, b"--5"), "'one.cls'.*'--5'"),
    "an image without a label": (TAR, tar_with, "has no .cls"),
    "an image twice": (TAR, twice, "is there twice"),
    "a tar of links": (TAR, lambda path: tar_of_links(path), "is a link or a sparse file"),
    "a tar that is cut off in an image": (TAR, lambda path: (tar_with(path), cut(path, 520)), "is cut off"),
    "a tar that is cut off between images": (TAR, lambda path: (tar_with(path), cut(path, 2048)), "is cut off"),
    "a tar of other bytes": (TAR, lambda path: path.write_bytes(3000 * b"no tar"), "cannot be read"),
    "an empty tar": (TAR, lambda path: path.write_bytes(b""), "cannot be read"),
    "Parquet with a label of no class": (PARQUET, lambda path: parquet_with(path, label=7), "none of the 1 classes"),
    "Parquet that is cut off": (PARQUET, lambda path: (parquet_with(path), cut(path, 400)), "is the download whole"),
    "Parquet with other columns": (
        PARQUET,
        lambda path: pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path),
        "has the columns 'a ",
    ),
    "a script": (PARQUET, lambda path: parquet_with(path, content=b"#!/bin/sh"), "is no image"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_damaged_or_leads_elsewhere_is_refused(tmp_path, tiny_data, case):
    """The shard is named, nothing is written outside of TO, and no half of a set appears."""
    name, write, expected = REFUSED[case]
    folder, target = tmp_path / "in" / "here" / "from", tmp_path / "in" / "here" / "imagenet"
    folder.parent.mkdir(parents=True)
    if name == TRAIN_TAR:
        write_ilsvrc(folder, numbered(tmp_path / "numbered", tiny_data))
    else:
        folder.mkdir()
    if name == TAR:
        (folder / "classes.txt").write_text("left\n")
    write(folder / name)
    before = contents(tmp_path)
    message = refused(folder, target)
    assert re.search(expected, message) and name in message, message
    outside = {path for path in contents(tmp_path) if f"imagenet/{WORKSHOP}/" not in path and "a cache/" not in path}
    assert outside == before.keys() and not {"train", "val"} & {path.name for path in target.glob("*")}


def test_classes_of_val_that_train_lacks_are_refused(tmp_path, tiny_data):
    source = write_parquet(tmp_path / "from", tiny_data)
    parquet_with(source / "data" / "validation-0.parquet", classes=("another",))
    assert "val has classes that train lacks: 'another'" in refused(source, tmp_path / "imagenet")
    assert not (tmp_path / "imagenet" / "val").exists()


def test_it_stops_before_the_disk_is_full(tmp_path, tiny_data, monkeypatch):
    """Before the first image, and again while images are written; then the same command goes on."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    monkeypatch.setattr(progress, "CHECK_BYTES", 1000)
    with pytest.raises(UserError, match=r"GB are needed .* the same command goes on"):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 1000)
    assert not contents(target).keys() - {f"{WORKSHOP}/journal", f"{WORKSHOP}/lock"}
    answers = iter([1 << 40, 1 << 40])
    with pytest.raises(UserError, match="GB are needed"):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: next(answers, 1000))
    import_all(source, target)
    assert contents(target) == contents(tiny_data)


def test_a_set_that_is_there_is_left_alone(tmp_path, tiny_data):
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    (target / "val").mkdir(parents=True)
    assert "is there already" in refused(source, target) and not (target / WORKSHOP).exists()


# --- killed, and started again ------------------------------------------------------------------------------------


def test_a_killed_import_goes_on(tmp_path, tiny_data, monkeypatch, capsys):
    """Killed when four shards are open, and two images of each are there, of which one is not whole."""
    monkeypatch.setattr("data.sources.NUM_TOGETHER", 8)  # images of a shard
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    assert kill_with_open_shards(ImportOptions(source, target), 4) == -signal.SIGKILL
    written = [*(target / WORKSHOP).rglob("*.JPEG")]
    assert len(written) == 8 and not [*target.glob("train")]
    written[0].write_bytes(bytes(1 << 20))  # more than the image has
    with together(4):
        import_all(source, target)
    assert "going on after 0 shards" in capsys.readouterr().out
    assert contents(target) == contents(tiny_data)


@pytest.mark.parametrize("pack", [None, "256"])
def test_an_import_that_is_stopped_at_its_end_ends_when_it_is_started_again(tmp_path, tiny_data, monkeypatch, pack):
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(write_shards, "remove_workshop", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        import_images.main(ImportOptions(source, target, pack=pack))
    import_all(source, target, pack=pack)
    assert not (target / WORKSHOP).exists()


def test_a_finished_shard_is_not_read_again(tmp_path, tiny_data, capsys):
    """A shard whose file has changed is."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    first, last = sorted(source.glob("*-train-*.tar"))[0], sorted(source.glob("*-train-*.tar"))[-1]
    whole = last.read_bytes()
    cut(last, 700)
    assert last.name in refused(source, target)
    journal = (target / WORKSHOP / "journal").read_text()
    assert last.name not in journal
    last.write_bytes(whole)
    if first.name in journal:
        content, status = first.read_bytes(), first.stat()
        first.write_bytes(bytes(len(content)))  # whoever reads it finds no tar
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    import_all(source, target)
    assert contents(target) == contents(tiny_data)
    assert "going on after" in capsys.readouterr().out


def test_another_kind_of_import_does_not_go_on(tmp_path, tiny_data):
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    assert "of an import from WebDataset" in refused(write_parquet(tmp_path / "other", tiny_data), target)
    assert "of an import from WebDataset" in refused(source, target, pack="256")


def test_a_check_that_fails_names_the_import(tmp_path):
    (tmp_path / "train-0.parquet").touch()
    with pytest.raises(UserError, match=r"\./bench data import FROM TO"):
        check_image_folder(tmp_path)
