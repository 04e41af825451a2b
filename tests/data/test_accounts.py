"""Every entry of a source is imported, or left out by a word, or refused by its name; a label comes from one place.

.venv/bin/python -m pytest tests/data/test_accounts.py
"""

import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy
import pytest
from data.sources import (
    CLASSES,
    add,
    jpeg,
    tar_of,
    write_flat,
    write_ilsvrc,
    write_images,
    write_parquet,
    write_webdataset,
)

from benchmarks.common.errors import UserError
from scripts.data import check, import_images
from scripts.data.find_source import TRAIN_TAR, VAL_TAR
from scripts.options.data_options import CheckDataOptions, ImportOptions

JPEG = jpeg(numpy.random.default_rng(99))
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def images(tmp_path) -> Path:
    """12 images of 4 classes in train, and 12 in val."""
    return write_images(tmp_path / "images")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr("data.sources.NUM_TOGETHER", 4)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def target_of(source: Path) -> Path:
    return source.with_name("the target")


def printed(source: Path, capsys, **changes) -> str:
    """What an import prints that ends well, and whose result the check counts in the same way."""
    assert import_images.main(ImportOptions(source, target_of(source), **changes)) == 0
    out = capsys.readouterr().out
    assert check.main(CheckDataOptions(str(target_of(source)))) == 0
    num_images = int(out.rpartition(" entries = ")[2].split()[0])
    assert f"{num_images} entries = {num_images} images + 0 left out" in capsys.readouterr().out
    return out


def refused(source: Path, **changes) -> str:
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target_of(source), **changes))
    assert not {"train", "val"} & {path.name for path in target_of(source).glob("*")}
    return str(caught.value)


def check_refused(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check.check_image_folder(folder)
    return str(caught.value)


def rewrite_tar(path: Path, rename=lambda name: name, more: dict[str, bytes] | None = None) -> None:
    with tarfile.open(path) as archive:
        members = [(member.name, archive.extractfile(member).read()) for member in archive]
    with tarfile.open(path, "w") as archive:
        for name, content in [*members, *(more or {}).items()]:
            add(archive, rename(name), content)


# --- every entry is accounted for ---------------------------------------------------------------------------------


def test_a_webdataset_sample_may_have_dots_in_its_name(tmp_path, images, capsys):
    source = write_webdataset(tmp_path / "from", images)
    shard = min(source.glob("*-train-*.tar"))
    rewrite_tar(shard, more={"x_v1.0.jpg": JPEG, "x_v1.0.cls": b"2"})
    assert "26 entries = 25 images + 1 left out (1 text)" in printed(source, capsys)
    assert (target_of(source) / "train" / CLASSES[2] / "x_v1.0.JPEG").read_bytes() == JPEG


def test_a_compressed_shard_beside_others_is_refused(tmp_path, images):
    source = write_webdataset(tmp_path / "from", images)
    (source / "train-000001.tar.gz").write_bytes(b"gzip")
    assert "'train-000001.tar.gz' is compressed: unpack it" in refused(source)


def test_hidden_files_are_left_out_in_one_line(tmp_path, images, capsys):
    source = write_webdataset(tmp_path / "from", images)
    shard = min(source.glob("*-train-*.tar"))
    (source / f"._{shard.name}").write_bytes(b"of macOS")
    rewrite_tar(shard, more={".DS_Store": b"of macOS"})
    assert "27 entries = 24 images + 3 left out (2 hidden, 1 text)" in printed(source, capsys)
    (images / "train" / ".ipynb_checkpoints").mkdir()
    (images / "train" / ".ipynb_checkpoints" / "x.JPEG").write_bytes(JPEG)
    (images / "train" / CLASSES[0] / "._x.JPEG").write_bytes(b"of macOS")
    assert check.main(CheckDataOptions(str(images))) == 0
    out = capsys.readouterr().out
    assert "4 classes, 12 train images" in out and "26 entries = 24 images + 2 left out (2 hidden)" in out


def test_a_train_tar_that_was_unpacked_once_is_read(tmp_path, images, capsys):
    source = write_ilsvrc(tmp_path / "from", images)
    (source / "train").mkdir()
    with tarfile.open(source / TRAIN_TAR) as archive:
        archive.extractall(source / "train", filter="data")
    (source / TRAIN_TAR).unlink()
    assert "24 images + 1 left out" in printed(source, capsys)  # the devkit
    assert contents(target_of(source)) == contents(images)


def test_images_in_folders_of_a_class_folder_are_read(tmp_path, images, capsys):
    source = write_flat(tmp_path / "from", images)
    inner = source / "train" / CLASSES[1] / "part0"
    inner.mkdir()
    for path in (source / "train" / CLASSES[1]).glob("*.JPEG"):
        path.rename(inner / path.name)
    printed(source, capsys)
    assert contents(target_of(source)) == contents(images)
    shutil.copytree(source / "train", images / "train", dirs_exist_ok=True)
    assert check.check_image_folder(images).num_train_images == 12 + 3


def test_images_with_other_endings_are_read_by_their_content(tmp_path, images, capsys):
    """b.jfif beside a.JPEG, and val_2 that the table names; the check of the folder names both."""
    source = write_flat(tmp_path / "from", images)
    (source / "train" / CLASSES[0] / "b.jfif").write_bytes(JPEG)
    (source / "val" / "val_2").write_bytes(JPEG + b"2")
    with open(source / "val" / "val_annotations.txt", "a") as table:
        table.write(f"val_2\t{CLASSES[1]}\n")
    printed(source, capsys)
    assert (target_of(source) / "train" / CLASSES[0] / "b.JPEG").read_bytes() == JPEG
    assert (target_of(source) / "val" / CLASSES[1] / "val_2.JPEG").read_bytes() == JPEG + b"2"
    (images / "train" / CLASSES[0] / "b.jfif").write_bytes(JPEG)
    assert f"what would not be read (1): '{CLASSES[0]}/b.jfif'" in check_refused(images)


def test_what_is_no_image_is_refused_with_three_names_and_the_number(tmp_path, images):
    source = write_flat(tmp_path / "from", images)
    for number in range(5):
        (source / "train" / CLASSES[0] / f"{number}.JPEG").write_bytes(b"an error page")
    message = refused(source)
    assert message.count("is no image") == 3 and "and 2 more" in message and f"{CLASSES[0]}/0.JPEG'" in message


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_class_folder_that_leads_nowhere_is_refused(tmp_path, images, part):
    """Without it the later classes would have other numbers."""
    link = images / part / CLASSES[1]
    shutil.rmtree(link)
    link.symlink_to("/nonexistent/disk")
    assert f"'{CLASSES[1]}'" in check_refused(images)
    source = write_flat(tmp_path / "from", write_images(tmp_path / "more images"))
    link = source / part / CLASSES[1]
    shutil.rmtree(link, ignore_errors=True)
    link.symlink_to("/nonexistent/disk")
    assert f"'{part}/{CLASSES[1]}' leads nowhere" in refused(source)


# --- a label comes from one place ---------------------------------------------------------------------------------


def half_flat(folder: Path, images: Path) -> Path:
    """val/ with two class folders of 3 images, 6 loose ones, and a table of all 12."""
    source = write_flat(folder, images)
    for name in CLASSES[:2]:
        shutil.copytree(images / "val" / name, source / "val" / name)
        for path in (source / "val" / name).iterdir():
            (source / "val" / path.name).unlink()
    return source


def test_a_val_that_is_half_flat_is_read_whole(tmp_path, images, capsys):
    source = half_flat(tmp_path / "from", images)
    printed(source, capsys)
    assert contents(target_of(source)) == contents(images)
    message = check_refused(source)
    assert "what would not be read (6): 'ILSVRC2012_val_00000003.JPEG'" in message


def test_a_folder_and_a_table_that_say_two_classes_are_refused(tmp_path, images):
    source = half_flat(tmp_path / "from", images)
    one = next((source / "val" / CLASSES[0]).iterdir())
    one.rename(source / "val" / CLASSES[1] / one.name)
    assert f"other classes of '{one.name}'" in refused(source)


def test_a_devkit_labels_by_the_number_in_a_name(tmp_path, images, capsys):
    """val_10 is sorted before val_2."""
    source = write_flat(tmp_path / "from", images, "devkit")
    for path in (source / "val").iterdir():
        path.rename(path.with_name(f"val_{int(path.stem[-8:])}.JPEG"))
    printed(source, capsys)
    by_class = {path.parent.name: [] for path in (images / "val").glob("*/*")}
    for path in target_of(source).glob("val/*/*"):
        by_class[path.parent.name].append(path.read_bytes())
    for name, found in by_class.items():
        assert sorted(found) == sorted(path.read_bytes() for path in (images / "val" / name).iterdir())


def test_a_copy_in_the_place_of_a_missing_number_is_refused(tmp_path, images):
    source = write_flat(tmp_path / "from", images, "devkit")
    ninth = source / "val" / "ILSVRC2012_val_00000009.JPEG"
    shutil.copy(ninth, ninth.with_name("ILSVRC2012_val_00000009 (1).JPEG"))
    ninth.with_name("ILSVRC2012_val_00000005.JPEG").unlink()
    message = refused(source)
    assert "'ILSVRC2012_val_00000009 (1).JPEG' cannot be placed" in message and "number 5 of 1 missing" in message


def test_a_path_and_a_label_of_two_classes_are_refused_with_the_option(tmp_path, images):
    source = write_parquet(tmp_path / "from", images)
    (tmp_path / "wrong").write_text("".join(f"{name}\n" for name in CLASSES[::-1]))
    message = refused(source, classes=tmp_path / "wrong")
    assert "in its path, and" in message and "--classes" in message


def test_two_classes_of_one_name_are_refused(tmp_path, images):
    """ImageNet has two kinds of crane."""
    source = write_webdataset(tmp_path / "from", images)
    (source / "classes.txt").write_text("crane bird\ncrane machine\nbird\nmachine\n")
    assert "has 'crane' twice" in refused(source)
    (source / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    (source / "synsets.txt").write_text("".join(f"{name}\n" for name in CLASSES[::-1]))
    assert "have other classes; name by --classes the right one" in refused(source)


def test_a_table_with_an_image_twice_is_refused(tmp_path, images):
    source = write_flat(tmp_path / "from", images)
    table = source / "val" / "val_annotations.txt"
    name, _, _ = table.read_text().partition("\t")
    table.write_text(table.read_text() + f"{name}\t{CLASSES[3]}\n")
    assert f"line 13: '{name}' is there twice" in refused(source)


def test_a_list_of_classes_may_begin_with_the_mark_of_utf8(tmp_path, images, capsys):
    source = write_webdataset(tmp_path / "from", images)
    (source / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES), encoding="utf-8-sig")
    printed(source, capsys)
    assert contents(target_of(source)) == contents(images)


# --- a source says how much there is ------------------------------------------------------------------------------


def test_a_shard_that_is_not_there_is_named(tmp_path, images):
    source = write_parquet(tmp_path / "from", images)
    second = source / "data" / "train-00001-of-00003.parquet"
    second.rename(f"{second}.incomplete")
    assert f"{second.name}.incomplete' is a download that did not end" in refused(source)
    (source / "data" / f"{second.name}.incomplete").unlink()
    assert f"missing (1): data/{second.name}" in refused(source)
    source = write_webdataset(tmp_path / "tars", images)
    (source / "imagenet1k-train-0001.tar").unlink()
    assert "missing (1): imagenet1k-train-0001.tar" in refused(source)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.6])
def test_a_tar_that_is_zeros_from_some_place_on_is_refused(tmp_path, images, share):
    """A download whose space was allocated: zeros are also how a tar ends."""
    source = write_ilsvrc(tmp_path / "from", images)
    path = source / TRAIN_TAR
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)].ljust(len(content), b"\0"))
    message = refused(source)
    assert TRAIN_TAR in message and "is the download whole?" in message


def test_an_image_that_ends_in_zeros_is_refused(tmp_path, images):
    source = write_flat(tmp_path / "from", images)
    path = next((source / "train" / CLASSES[0]).iterdir())
    path.write_bytes(path.read_bytes()[:12].ljust(100, b"\0"))
    assert f"{path.name}' ends in zeros" in refused(source)


def test_a_class_tar_without_an_image_is_refused(tmp_path, images):
    source = write_ilsvrc(tmp_path / "from", images)
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    rewrite_tar(source / TRAIN_TAR, more={"n09999999.tar": empty.getvalue()})
    assert "n09999999.tar has no image" in refused(source)
    rewrite_tar(source / TRAIN_TAR, lambda name: name.replace("n09999999", CLASSES[0]))
    assert f"'{CLASSES[0]}.tar' is there twice" in refused(source)


def test_a_val_tar_with_fewer_images_than_the_devkit_is_refused(tmp_path, images):
    source = write_ilsvrc(tmp_path / "from", images)
    (source / VAL_TAR).unlink()
    some = sorted((images / "val").glob("*/*"), key=lambda path: path.name)[1:]
    (source / VAL_TAR).write_bytes(tar_of(some))
    assert f"{VAL_TAR}: the devkit has labels of the images 1 to 12, and number 1 of 1 missing" in refused(source)


def test_a_table_with_images_that_are_not_there_is_refused(tmp_path, images):
    source = write_flat(tmp_path / "from", images)
    gone = sorted((source / "val").glob("*.JPEG"))[:3]
    for path in gone:
        path.unlink()
    assert f"has 12 images; not there (3): '{gone[0].name}'" in refused(source)


def test_a_devkit_that_was_unpacked_is_no_image(tmp_path, images, capsys):
    source = write_flat(tmp_path / "from", images, "devkit")
    with tarfile.open(source / "ILSVRC2012_devkit_t12.tar.gz") as archive:
        archive.extractall(source, filter="data")
    os.makedirs(source / "ILSVRC2012_devkit_t12" / "evaluation")
    (source / "ILSVRC2012_devkit_t12" / "evaluation" / "demo.m").write_text("of Matlab")
    assert "28 entries = 24 images + 4 left out (4 of ImageNet's other downloads)" in printed(source, capsys)
