"""./bench data import: every source gives the same files, hostile ones give none, and a killed import goes on.

.venv/bin/python -m pytest tests/data_import
"""

import gzip
import io
import json
import os
import re
import shutil
import signal
import stat
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from data_import.killed_import import kill_with_open_shards, run_killed, together
from data_import.sources import (
    HUB_IMAGE,
    WRITERS,
    add,
    devkit_files,
    write_flat,
    write_ilsvrc,
    write_parquet,
    write_webdataset,
)
from support import NUM_TRAIN, NUM_VAL, loaders

from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import cache_path
from benchmarks.common.system.errors import UserError
from scripts.data_import import find_source, import_images, progress
from scripts.data_import.class_lists import DEVKIT_ARCHIVE, GROUND_TRUTH, find_devkit
from scripts.data_import.find_source import VAL_TAR
from scripts.data_import.import_images import WORKSHOP, ImportOptions
from scripts.data_import.journal import Total, line_of, shard_key
from scripts.data_import.parquet_shards import names_of
from scripts.data_import.source_images import Download
from scripts.setup.check_data import check_image_folder

JPEG = b"\xff\xd8 of some bytes"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(params=WRITERS)
def source(request, tmp_path, tiny_data) -> Path:
    return WRITERS[request.param](tmp_path / "the downloads", tiny_data)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def import_all(source: Path, target: Path, **changes) -> None:
    assert import_images.main(ImportOptions(source, target, **changes)) == 0


def refused(source: Path, target: Path, **changes) -> str:
    """The message of a refused import: one line, which steers no terminal."""
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target, **changes))
    assert str(caught.value).isprintable(), str(caught.value)
    return str(caught.value)


# --- the sources --------------------------------------------------------------------------------------------------


def test_every_source_gives_the_same_images(source, tmp_path, tiny_data, capsys):
    """Protects `all sources give one fingerprint`: equal bytes, names, fingerprint and first batch. Mutant: labels of
    the devkit by the place in meta.mat."""
    target = tmp_path / "imagenet"
    import_all(source, target)
    assert contents(target) == contents(tiny_data)
    assert cached_fingerprint(target) == cached_fingerprint(tiny_data)
    first, expected = (next(iter(loaders(data)[0])) for data in (target, tiny_data))
    assert all(torch.equal(*pair) for pair in zip(first, expected, strict=True))
    printed = capsys.readouterr().out
    assert f"{NUM_TRAIN} images of 4 classes" in printed and f"{NUM_VAL} images of 4 classes" in printed
    assert f"fingerprint {cached_fingerprint(tiny_data)}" in printed


@pytest.mark.parametrize("table", ["LOC_val_solution.csv", "devkit"])
def test_a_flat_val_folder_has_its_classes_from_any_table(tmp_path, tiny_data, table):
    target = tmp_path / "imagenet"
    import_all(write_flat(tmp_path / "from", tiny_data, table), target)
    assert contents(target) == contents(tiny_data)


def test_a_flat_val_of_its_own_joins_a_train_that_is_there(tmp_path, tiny_data):
    """Protects whoever has train/ already: val/ alone is imported beside it."""
    source = write_flat(tmp_path / "from", tiny_data)
    shutil.rmtree(source / "train")
    target = tmp_path / "imagenet"
    shutil.copytree(tiny_data / "train", target / "train")
    import_all(source, target)
    assert check_image_folder(target).num_val_images == NUM_VAL
    assert contents(target) == contents(tiny_data)


def test_the_hubs_names_become_the_official_ones():
    """Protects the fingerprint of the hub's ImageNet, whose paths have the class once more."""
    official = ("n01440764", "n01440764_10026.JPEG")
    assert names_of("n01440764_10026_n01440764.JPEG", 0, ["tench, Tinca tinca"], "a shard") == official
    of_val = names_of("ILSVRC2012_val_00000001_n01751748.JPEG", 65, [], "a shard")
    assert of_val == ("n01751748", "ILSVRC2012_val_00000001.JPEG")
    assert names_of("a/n01440764_10026.jpg", 1, ["n0", "n01440764"], "a shard") == official


def test_words_as_classes_need_a_list(tmp_path, tiny_data):
    """Protects the fingerprint: a class is its wnid, not words. --classes gives the wnids."""
    source = write_webdataset(tmp_path / "from", tiny_data)
    names = (source / "classes.txt").read_text()
    (source / "classes.txt").unlink()
    assert "--classes" in refused(source, tmp_path / "imagenet")
    with pytest.raises(UserError, match="'tench, Tinca tinca' cannot be a folder; name by --classes"):
        names_of("1.jpg", 0, ["tench, Tinca tinca"], "a shard")
    (tmp_path / "wnids").write_text(names.replace("\n", " some words\n"))
    import_all(source, tmp_path / "imagenet", classes=tmp_path / "wnids")
    assert contents(tmp_path / "imagenet") == contents(tiny_data)


def test_a_test_split_is_left_out(tmp_path, tiny_data, capsys):
    source = write_parquet(tmp_path / "from", tiny_data)
    (source / "data" / "test-00000-of-00001.parquet").write_bytes(b"labels of -1")
    import_all(source, tmp_path / "imagenet")
    assert "1 files of the test split are left out" in capsys.readouterr().out


def test_a_check_that_fails_names_the_import(tmp_path):
    """Protects a user with shards, who is told of the command that reads them."""
    (tmp_path / "train-0.parquet").touch()
    with pytest.raises(UserError, match=r"\./bench data import FROM TO"):
        check_image_folder(tmp_path)


def test_what_is_no_source_is_refused(tmp_path, tiny_data):
    assert "does not exist" in refused(tmp_path / "nothing", tmp_path / "imagenet")
    assert "class folders already" in refused(tiny_data, tmp_path / "imagenet")
    (tmp_path / "empty").mkdir()
    assert "nothing that can be imported" in refused(tmp_path / "empty", tmp_path / "imagenet")
    assert not (tmp_path / "imagenet").exists()


# --- what is hostile or damaged -----------------------------------------------------------------------------------


def tar_with(path: Path, name: str = "good.jpg", **fields) -> None:
    """A tar of one good sample and one more member."""
    with tarfile.open(path, "w") as archive:
        add(archive, "first.jpg", JPEG)
        add(archive, "first.cls", b"0")
        add(archive, name, JPEG if fields.get("type", tarfile.REGTYPE) == tarfile.REGTYPE else b"", **fields)


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:num_bytes])


def huge_member(path: Path, size: int = 1 << 40) -> None:
    """The header claims a terabyte."""
    tar_with(path, "good.jpg")
    content = bytearray(path.read_bytes())
    header = tarfile.TarInfo("huge.jpg")
    header.size = size
    place = content.index(b"good.jpg")
    content[place : place + 512] = header.tobuf(tarfile.GNU_FORMAT)
    path.write_bytes(content)


def pax_size(path: Path) -> None:
    """A record of pax says the size: with it the next member is the record itself."""
    header = tarfile.TarInfo("back.jpg")
    header.pax_headers = {"size": "-1536"}
    path.write_bytes(header.tobuf(tarfile.PAX_FORMAT) + bytes(1024))


def parquet_with(path: Path, inner: str = "1.jpg", label: int = 0, classes: tuple[str, ...] = ("left",)) -> None:
    features = {"label": {"names": classes}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = pyarrow.schema([("image", HUB_IMAGE), ("label", pyarrow.int64())], metadata=metadata)
    images = pyarrow.array([{"bytes": JPEG, "path": inner}], HUB_IMAGE)
    pyarrow.parquet.write_table(pyarrow.table({"image": images, "label": [label]}, schema), path)


def parquet_of(file: Path, again: str = "", **columns: pyarrow.Array) -> None:
    """Parquet with columns of other types. again: the name of one more column of images."""
    fields = {"bytes": pyarrow.array([JPEG]), "path": pyarrow.array(["1.jpg"]), "label": pyarrow.array([0])} | columns
    image = pyarrow.StructArray.from_arrays([fields["bytes"], fields["path"]], ["bytes", "path"])
    names, arrays = ["image", "label"], [image, fields["label"]]
    table = pyarrow.table([*arrays, *([image] if again else [])], names=[*names, *([again] if again else [])])
    pyarrow.parquet.write_table(table, file)


def linked_fifo(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


NEEDED = "are needed"


def nested(path: Path, name: str) -> None:
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        add(archive, "../../evil.JPEG", JPEG)
    with tarfile.open(path, "w") as archive:
        add(archive, name, inner.getvalue())


def link(kind: bytes):
    return lambda path: tar_with(path, "evil.jpg", type=kind, linkname="/etc/passwd")


TAR, TRAIN_TAR, PARQUET = "a-train-0.tar", "ILSVRC2012_img_train.tar", "train-0.parquet"
HOSTILE = {
    "a name with ..": (TAR, lambda path: tar_with(path, "../../evil.jpg"), "leads out of the folder"),
    "an absolute name": (TAR, lambda path: tar_with(path, "/tmp/evil.jpg"), "leads out of the folder"),
    "a symbolic link": (TAR, link(tarfile.SYMTYPE), "is a link"),
    "a hard link": (TAR, link(tarfile.LNKTYPE), "is a link"),
    "a device": (TAR, link(tarfile.CHRTYPE), "is a link, a device"),
    "a FIFO": (TAR, link(tarfile.FIFOTYPE), "is a link, a device"),
    "a name that steers the terminal": (TAR, lambda path: tar_with(path, "\x1b[2J.jpg"), "no name for an image"),
    "a hidden name": (TAR, lambda path: tar_with(path, ".importing.jpg"), "no name for an image"),
    "a name that is too long": (TAR, lambda path: tar_with(path, 300 * "a" + ".jpg"), "no name for an image"),
    "a size of a terabyte": (TAR, huge_member, "is cut off"),
    "a size that leads back to its own header": (TAR, lambda path: huge_member(path, -512), "has -512 bytes"),
    "a pax size that leads back": (TAR, pax_size, "has -1536 bytes"),
    "a label that is no class": (TAR, lambda path: tar_with(path, "first.cls"), "cannot be a folder"),
    "an image without a label": (TAR, tar_with, "has no .cls"),
    "an image twice": (
        TAR,
        lambda path: tar_with(path, "b/first.jpg") or add_label(path),
        "is there twice",
    ),
    "a tar that is cut off in an image": (TAR, lambda path: (tar_with(path), cut(path, 520)), "is cut off"),
    "a tar that is cut off between images": (TAR, lambda path: (tar_with(path), cut(path, 2048)), "is cut off"),
    "a tar of other bytes": (TAR, lambda path: path.write_bytes(3000 * b"no tar"), "cannot be read"),
    "an empty tar": (TAR, lambda path: path.write_bytes(b""), "cannot be read"),
    "a class tar with ..": (TRAIN_TAR, lambda path: nested(path, "../left.tar"), "leads out of the folder"),
    "a name with .. in a class tar": (TRAIN_TAR, lambda path: nested(path, "left.tar"), "leads out of the folder"),
    "Parquet with ..": (PARQUET, lambda path: parquet_with(path, "../../evil.jpg"), "leads out of the folder"),
    "Parquet with a class of ..": (PARQUET, lambda path: parquet_with(path, classes=("../..",)), "cannot be a folder"),
    "Parquet with a label of no class": (PARQUET, lambda path: parquet_with(path, label=7), "none of the 1 classes"),
    "Parquet that is cut off": (PARQUET, lambda path: (parquet_with(path), cut(path, 400)), "is the download whole"),
    "Parquet with other columns": (
        PARQUET,
        lambda path: pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path),
        "has the columns 'a ",
    ),
    "Parquet with bytes of numbers": (PARQUET, lambda path: parquet_of(path, bytes=pyarrow.array([5])), NEEDED),
    "Parquet with bytes of text": (PARQUET, lambda path: parquet_of(path, bytes=pyarrow.array(["a"])), NEEDED),
    "Parquet with paths of numbers": (PARQUET, lambda path: parquet_of(path, path=pyarrow.array([5])), NEEDED),
    "Parquet with labels of lists": (PARQUET, lambda path: parquet_of(path, label=pyarrow.array([[1]])), NEEDED),
    "Parquet with labels of floats": (PARQUET, lambda path: parquet_of(path, label=pyarrow.array([1.5])), NEEDED),
    "Parquet with labels of words": (
        PARQUET,
        lambda path: parquet_of(path, label=pyarrow.array(["tench, Tinca tinca"])),
        "cannot be a folder",
    ),
    "Parquet with two columns of images": (PARQUET, lambda path: parquet_of(path, again="image"), NEEDED),
    "a FIFO as a tar": (TAR, os.mkfifo, "not a regular file"),
    "a FIFO as Parquet": (PARQUET, os.mkfifo, "not a regular file"),
    "a link to a FIFO as Parquet": (PARQUET, lambda path: linked_fifo(path), "not a regular file"),
    "a script": (PARQUET, lambda path: parquet_with(path, "evil.sh"), "is no image"),
}


def add_label(path: Path) -> None:
    with tarfile.open(path, "a") as archive:
        add(archive, "b/first.cls", b"0")


def write_good_val(folder: Path, data: Path, hostile: str) -> None:
    """A val that can be imported, of the same kind of source as the hostile file; packed files need both parts."""
    if hostile == TRAIN_TAR:
        write_ilsvrc(folder, data)
    elif hostile == PARQUET:
        parquet_with(folder / "validation-0.parquet")
    else:
        (folder / "classes.txt").write_text("left\n")
        with tarfile.open(folder / "a-val-0.tar", "w") as archive:
            add(archive, "one.jpg", JPEG)
            add(archive, "one.cls", b"0")


@pytest.mark.parametrize("pack", [None, "256"])
@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_hostile_or_damaged_is_refused(tmp_path, tiny_data, case, pack):
    """Protects the user's files, and a set from being half of one: the shard is named, and neither train/ nor a packed
    file appears. Mutants: each check of a name, a kind or an end left out."""
    name, write, expected = HOSTILE[case]
    folder, target = tmp_path / "in" / "here" / "from", tmp_path / "in" / "here" / "imagenet"
    folder.parent.mkdir(parents=True)
    if name != TRAIN_TAR:
        folder.mkdir()
    write_good_val(folder, tiny_data, name)
    (folder / name).unlink(missing_ok=True)
    write(folder / name)
    before = contents(tmp_path)
    message = refused(folder, target, pack=pack)
    assert re.search(expected, message) and name in message, message
    outside = {path for path in contents(tmp_path) if f"imagenet/{WORKSHOP}/" not in path and "a cache/" not in path}
    assert outside == before.keys() and not {"train", "val", "packed"} & {path.name for path in target.glob("*")}


def test_a_devkit_whose_archive_leads_back_is_refused(tmp_path):
    """Protects from reading the same header for ever. Mutant: the sizes are not looked at."""
    huge_member(tmp_path / "plain.tar", -512)
    with gzip.open(tmp_path / DEVKIT_ARCHIVE, "wb") as packed:
        packed.write((tmp_path / "plain.tar").read_bytes())
    with pytest.raises(UserError, match="has -512 bytes"):
        find_devkit(tmp_path, Download.at(tmp_path))


def test_classes_of_val_that_train_lacks_are_refused(tmp_path, tiny_data):
    source = write_parquet(tmp_path / "from", tiny_data)
    parquet_with(source / "data" / "validation-9.parquet", classes=("another",))
    assert "val has classes that train lacks: 'another'" in refused(source, tmp_path / "imagenet")
    assert not (tmp_path / "imagenet" / "val").exists()


def test_it_stops_before_the_disk_is_full(tmp_path, tiny_data, monkeypatch):
    """Protects the disk: before the first image, and again while images are written; then the same command goes on.
    Mutant: no look at the disk after the first."""
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


def test_what_is_there_is_left_alone(tmp_path, tiny_data):
    """Protects a set that is there already, and a folder that a link leads to."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    (target / "val").mkdir(parents=True)
    assert "is there already" in refused(source, target) and not (target / WORKSHOP).exists()
    (target / "val").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (target / WORKSHOP).symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refused(source, target) and not [*(tmp_path / "elsewhere").iterdir()]


def test_a_folders_links_and_files_are_only_its_own_images(tmp_path, tiny_data):
    """Protects the user's own files from a download that has links to them. Links in the source stay fine. Mutants: no
    look at a link of an image, of a class, of train/ or of val/; any bytes taken for an image."""
    secret = tmp_path / "private" / "key.JPEG"
    secret.parent.mkdir()
    secret.write_bytes(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    plain = write_flat(tmp_path / "from", tiny_data)
    class_folder = sorted((plain / "train").iterdir())[0]
    image = sorted(class_folder.iterdir())[0]
    (plain / "store").mkdir()
    image.rename(plain / "store" / image.name)
    image.symlink_to(plain / "store" / image.name)
    import_all(plain, tmp_path / "linked inside")
    assert contents(tmp_path / "linked inside") == contents(tiny_data)
    for number, place in enumerate(("train", f"train/{class_folder.name}", "val/evil.JPEG", image.relative_to(plain))):
        source = Path(shutil.copytree(plain, tmp_path / f"from {number}", symlinks=True))
        path = source / place
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        path.symlink_to(secret if path.suffix else secret.parent)
        assert "leads out of" in refused(source, tmp_path / "imagenet"), place
    (plain / "store" / image.name).write_bytes(secret.read_bytes())
    assert "neither a JPEG nor a PNG" in refused(plain, tmp_path / "imagenet")
    assert not (tmp_path / "imagenet" / "train").exists()


def test_no_shard_of_a_download_is_a_link_to_a_file_of_the_user(tmp_path, tiny_data):
    """Protects the user's own images: a download had a link to a tar of theirs, whose images came into the data set.
    Links in the source and those of the hub's cache stay fine. Mutants: no look at links; any blobs/; blobs/ that is a
    link."""
    plain = write_parquet(tmp_path / "plain", tiny_data)
    name = "data/train-00000-of-00001.parquet"
    (plain / "store").mkdir()
    (plain / name).rename(plain / "store/a file")
    (plain / name).symlink_to(plain / "store/a file")
    import_all(plain, tmp_path / "linked inside")
    assert contents(tmp_path / "linked inside") == contents(tiny_data)
    hub = tmp_path / "datasets--a--b"
    (hub / "blobs").mkdir(parents=True)
    snapshot = Path(shutil.copytree(plain / "data", hub / "snapshots/0123abc/data")).parent
    for number, path in enumerate(sorted((snapshot / "data").iterdir())):
        path.rename(hub / f"blobs/{number}")
        path.symlink_to(f"../../../blobs/{number}")
    import_all(snapshot, tmp_path / "of the hub")
    assert contents(tmp_path / "of the hub") == contents(tiny_data)
    (snapshot / "again").symlink_to(snapshot / "data")
    (tmp_path / "empty").mkdir()
    (snapshot / "notes").symlink_to(tmp_path / "empty")
    import_all(snapshot, tmp_path / "with other links")
    assert contents(tmp_path / "with other links") == contents(tiny_data)
    (snapshot / "more").symlink_to(plain / "data")
    assert "more' is a link to a folder with shards, which is not followed" in refused(snapshot, tmp_path / "imagenet")
    (snapshot / "more").unlink()
    (hub / "blobs").rename(tmp_path / "private")
    (hub / "blobs").symlink_to(tmp_path / "private")
    assert "leads out of" in refused(snapshot, tmp_path / "imagenet")
    (plain / name).unlink()
    (plain / name).symlink_to(tmp_path / "private/0")
    assert "leads out of" in refused(plain, tmp_path / "imagenet") and not (tmp_path / "imagenet").exists()


@pytest.mark.parametrize("look", [(import_images, "find_source"), (find_source, "find_archives")])
def test_what_becomes_a_link_after_the_look_is_not_read(source, tmp_path, monkeypatch, look):
    """Protects the user's own images where another user can write to the source: a file became a link to one of the
    user's after the links were looked at. Mutant for each reader: the file is opened by its name alone."""
    find, private = getattr(*look), tmp_path / "private"
    private.mkdir()

    def find_and_swap(*words):
        found = find(*words)
        for number, path in enumerate([*source.rglob("*.*")]):
            if path.suffix in (".tar", ".parquet", ".JPEG", ".png") and not path.is_symlink():
                path.rename(private / str(number))
                path.symlink_to(private / str(number))
        return found

    monkeypatch.setattr(*look, find_and_swap)
    assert "leads out of" in refused(source, tmp_path / "imagenet")
    assert not [path for path in (tmp_path / "imagenet").rglob("*.*") if path.suffix in (".JPEG", ".png")]


def test_one_file_that_is_named_may_be_a_link(tmp_path, tiny_data):
    """Protects what the user has typed, which may lead anywhere. Mutant: only the folder of the file may be read."""
    plain = write_parquet(tmp_path / "plain", tiny_data)
    linked = tmp_path / "train-0.parquet"
    linked.symlink_to(plain / "data/train-00000-of-00001.parquet")
    found = find_source.find_source(linked, None)
    assert len([*found.shards[0].read()]) == NUM_TRAIN


@pytest.mark.parametrize("kind", ["WebDataset", "flat val"])
def test_no_list_of_a_download_is_a_link_to_a_file_of_the_user(tmp_path, tiny_data, kind):
    """Protects the words of a private file: a download had a link to it as its classes.txt, and they became names of
    class folders. A link in the source stays fine, and so does a list that the user names. Mutants: the list not seen;
    the table not seen; the list that the user names refused."""
    write, name = {
        "WebDataset": (write_webdataset, "classes.txt"),
        "flat val": (write_flat, "val/val_annotations.txt"),
    }[kind]
    source, target = write(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    secret = tmp_path / "private/tokens"
    secret.parent.mkdir()
    (source / name).rename(secret)
    (source / name).symlink_to(secret)
    assert "leads out of" in refused(source, target) and not (target / "train").exists()
    if kind == "WebDataset":
        import_all(source, tmp_path / "named", classes=source / name)
        assert contents(tmp_path / "named") == contents(tiny_data)
    secret.rename(source / "list")
    (source / name).unlink()
    (source / name).symlink_to(source / "list")
    import_all(source, target)
    assert contents(target) == contents(tiny_data)


@pytest.mark.parametrize("linked", ["the ground truth", "the archive"])
def test_no_devkit_of_a_download_is_a_link_to_a_file_of_the_user(tmp_path, tiny_data, linked):
    """Protects a private file, of which an error printed a line: a download had a link to it as its devkit's ground
    truth. Mutants: links followed; the error of the line passed on."""
    source, target = write_ilsvrc(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    secret, link = tmp_path / "secret", source / DEVKIT_ARCHIVE
    if linked == "the archive":
        link.rename(secret)
    else:
        link.unlink()
        for name, content in devkit_files(tiny_data).items():
            (source / "data").mkdir(exist_ok=True)
            (source / "data" / name).write_bytes(content)
        link = source / "data" / GROUND_TRUTH
        link.write_text("hunter2\n")
        message = refused(source, target)
        assert "cannot be read" in message and "hunter2" not in message
        link.rename(secret)
    link.symlink_to(secret)
    assert "leads out of" in refused(source, target) and not (target / "train").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("kind", ["classes.txt", "table", "devkit", "devkit in a folder", "link", "devkit of a tar"])
def test_what_another_user_puts_beside_the_source_says_no_classes(tmp_path, tiny_data, capsys, kind):
    """Protects the labels: in /tmp any user can put a list beside a download. The owner's list counts, and is named.
    Mutants: no look at the owner; only at that of the file, not of its folder; only at what a link leads to."""
    beside, target = tmp_path / "tmp", tmp_path / "imagenet"
    if kind in ("classes.txt", "link"):
        write_webdataset(beside, tiny_data)
        source, planted = next(beside.rglob("*val*.tar")), beside / "classes.txt"
        source = source.rename(beside / source.name)
        if kind == "link":
            planted.rename(beside / "list")
            planted.symlink_to(beside / "list")
    elif kind == "devkit of a tar":
        source, planted = write_ilsvrc(beside, tiny_data) / VAL_TAR, beside / DEVKIT_ARCHIVE
    else:
        source = write_flat(beside / "from", tiny_data, "val_annotations.txt" if kind == "table" else "devkit") / "val"
        planted = beside / "from" / DEVKIT_ARCHIVE
        if kind == "table":
            planted = (source / "val_annotations.txt").rename(beside / "from/val_annotations.txt")
        elif kind == "devkit in a folder":
            planted.unlink()
            planted = beside / "from/devkit"
            planted.mkdir()
            for name, content in devkit_files(tiny_data).items():
                (planted / name).write_bytes(content)
    os.chown(planted, 12345, -1, follow_symlinks=False)
    refused(source, target)
    assert "belongs to another user" in capsys.readouterr().out
    os.chown(planted, 0, -1, follow_symlinks=False)
    import_all(source, target)
    assert f"labels: {planted}" in capsys.readouterr().out


def swap_when_opened(monkeypatch, path: Path, swap) -> None:
    """Calls `swap` after all looks at `path`, when it is about to be opened."""

    def swapping(opener):
        def open_swapped(name, *words, **options):
            if str(name) == str(path) and options.get("dir_fd") is None and swaps:
                swaps.pop()()
            return opener(name, *words, **options)

        return open_swapped

    swaps = [swap]
    monkeypatch.setattr(os, "open", swapping(os.open))
    monkeypatch.setattr(tarfile, "bltn_open", swapping(tarfile.bltn_open))


def write_with_list(folder: Path, data: Path, kind: str) -> Path:
    """A source whose classes this kind of list says; returns the path of the list."""
    if kind == "classes.txt":
        return write_webdataset(folder, data) / kind
    if kind == "table":
        return write_flat(folder, data) / "val/val_annotations.txt"
    write_ilsvrc(folder, data)
    if kind == "archive":
        return folder / DEVKIT_ARCHIVE
    (folder / DEVKIT_ARCHIVE).unlink()
    (folder / "data").mkdir()
    for name, content in devkit_files(data).items():
        (folder / "data" / name).write_bytes(content)
    return folder / "data" / GROUND_TRUTH


@pytest.mark.parametrize("kind", ["classes.txt", "table", "ground truth", "archive"])
def test_a_list_that_becomes_a_link_after_the_look_is_not_read(tmp_path, tiny_data, monkeypatch, kind):
    """Protects the words of a private file where another user can write to the source. Mutant: opened by its name."""
    path, secret = write_with_list(tmp_path / "from", tiny_data, kind), tmp_path / "secret"

    def swap():
        path.rename(secret)
        path.symlink_to(secret)

    swap_when_opened(monkeypatch, path, swap)
    assert "leads out of" in refused(tmp_path / "from", tmp_path / "imagenet")
    assert path.is_symlink() and not (tmp_path / "imagenet/train").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("kind", ["classes.txt", "archive"])
def test_a_list_that_another_user_swaps_after_the_look_says_no_classes(tmp_path, tiny_data, monkeypatch, capsys, kind):
    """Protects the labels where another user can write to the folder that the source is in. Mutant: the owner of the
    name alone, not of what was opened."""
    beside = write_with_list(tmp_path / "tmp", tiny_data, kind)
    source = next(beside.parent.rglob("*val*.tar"))
    source = source.rename(beside.parent / source.name)

    def swap():
        shutil.copyfile(beside, tmp_path / "theirs")
        os.chown(tmp_path / "theirs", 12345, -1)
        (tmp_path / "theirs").rename(beside)

    swap_when_opened(monkeypatch, beside, swap)
    refused(source, tmp_path / "imagenet")
    assert f"{beside} is not read" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_that_another_user_makes_after_the_look_is_not_imported_into(tmp_path, tiny_data, monkeypatch):
    """Protects a folder of the user's, which the end of the import emptied through a link: TO was to be made in /tmp,
    and another user made it between the look and the making. Mutant: no second look."""
    source, target = write_parquet(tmp_path / "from", tiny_data), tmp_path / "to"
    make_folder = import_images.make_folder

    def make_late(folder):
        folder.mkdir()
        os.chown(folder, 12345, -1)
        make_folder(folder)

    monkeypatch.setattr(import_images, "make_folder", make_late)
    assert "belongs to another user" in refused(source, target) and not [*target.iterdir()]


def test_a_label_that_is_no_number_is_named_with_its_sample(tmp_path, tiny_data):
    """Protects the user from Python's own text, which named no file. Mutant: any number of - before the digits."""
    source = write_webdataset(tmp_path / "from", tiny_data)
    path = next(source.rglob("*train*.tar"))
    with tarfile.open(path, "w") as archive:
        add(archive, "one.jpg", JPEG)
        add(archive, "one.cls", b"--5")
    message = refused(source, tmp_path / "imagenet")
    assert path.name in message and "'one'.cls" in message and "'--5'" in message


def test_what_is_half_imported_is_the_users_own(tmp_path, tiny_data):
    """Protects files of the user from a .importing that another user, or the author of a download, has put there.
    Mutants: each of the checks left out."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    (outside := tmp_path / "outside").mkdir()
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    workshop = target / WORKSHOP
    assert stat.S_IMODE(workshop.stat().st_mode) == 0o700
    workshop.chmod(0o770)
    assert "others can write to it" in refused(source, target)
    workshop.chmod(0o700)
    (workshop / "train").symlink_to(outside)
    assert "train' is a link" in refused(source, target)
    (workshop / "train").unlink()
    came_with_it = source / "imagenet" / WORKSHOP
    shutil.copytree(workshop, came_with_it)
    kind, boot, token = json.loads((workshop / "journal").read_text().split("\n")[0])
    for first in ([kind, "the author's boot", token], [kind, boot], [kind, boot, ""], [kind, boot, "0" * 64]):
        (came_with_it / "journal").write_text(json.dumps(first) + "\n")
        assert "may have come with" in refused(source, source / "imagenet")
    if not os.geteuid():
        os.chown(workshop, 12345, -1)
        assert "others can write to it" in refused(source, target)
        os.chown(workshop, 0, -1)
    assert not [*outside.iterdir()]
    shutil.rmtree(came_with_it)
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, source / "imagenet"), free_bytes=lambda folder: 0)
    import_all(source, source / "imagenet")
    assert contents(source / "imagenet") == contents(tiny_data)


@pytest.mark.parametrize("options", [{}, {"pack": "full"}])
def test_a_half_import_from_an_archive_overwrites_no_file_of_the_user(tmp_path, tiny_data, options):
    """Protects a file to which an archive has brought a hard link: a half import beside the download, with a journal of
    another boot. Mutants: a file of an image's name is written to; a packed file of another name, too."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    (precious := tmp_path / "precious").write_text("kept")
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target, **options), free_bytes=lambda folder: 0)
    journal = target / WORKSHOP / "journal"
    kind, *_ = json.loads(journal.read_text().split("\n")[0])
    journal.write_text(json.dumps([kind, "the author's boot", ""]) + "\n")
    image = next(name for name in contents(tiny_data) if name.startswith("train/"))
    linked = target / WORKSHOP / ("train.safetensors" if options else image)
    linked.parent.mkdir(parents=True, exist_ok=True)
    os.link(precious, linked)
    if options:
        assert "it is a hard link" in refused(source, target, **options)
    else:
        import_all(source, target)
        assert contents(target) == contents(tiny_data)
    assert precious.read_text() == "kept"


@pytest.mark.parametrize("with_token", [False, True])
def test_a_half_import_is_not_the_users_because_it_knows_the_machines_boot(tmp_path, tiny_data, capsys, with_token):
    """Protects who imports beside an archive of another user of the machine: that user knows the kernel's boot_id, and
    a journal with it brought shards that were not read again. Mutants: the boot alone is compared; a journal without a
    token, as an older version wrote it, is gone on with."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    journal, kept = target / WORKSHOP / "journal", cache_path(target, import_images.IMPORTING)
    for file in (journal, kept):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kind, boot, _ = json.loads(journal.read_text().split("\n")[0])
    found = find_source.find_source(source, None)
    keys = [shard_key(shard) for shard in found.shards]
    lines = [json.dumps([kind, boot, "0" * 64] if with_token else [kind, boot])]
    journal.write_text("\n".join([*lines, *(line_of(key, Total()) for key in keys), ""]))
    import_all(source, target)
    assert "nothing says that you began this import" in capsys.readouterr().out
    assert contents(target) == contents(tiny_data) and not kept.exists()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("place", ["imagenet", ".", "new/imagenet"])
def test_nothing_is_imported_where_another_user_could_put_a_link(tmp_path, tiny_data, half, place):
    """Protects all files of the user: the owner of TO, or of a folder above, renamed .importing and put a link to the
    user's home in its place, and the end of the import removed what was there. Mutants: no look; TO alone looked at; a
    half import gone on with."""
    source, above = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "above"
    target = above / ("imagenet" if place == "." else place)
    above.mkdir()
    if half:
        with pytest.raises(UserError):
            import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    open_to_all = target if place == "imagenet" else above
    open_to_all.mkdir(exist_ok=True)
    before = sorted(above.rglob("*"))
    open_to_all.chmod(0o777)
    assert refused(source, target).startswith(f"everybody may write to {open_to_all}; run: chmod o-w")
    if not os.geteuid():
        open_to_all.chmod(0o755)
        os.chown(open_to_all, 12345, -1)
        assert f"{open_to_all} belongs to another user (12345); choose a folder that you" in refused(source, target)
        os.chown(open_to_all, 0, -1)
    assert sorted(above.rglob("*")) == before
    open_to_all.chmod(0o755)
    import_all(source, target)
    assert contents(target) == contents(tiny_data)


# --- killed, and started again ------------------------------------------------------------------------------------


@pytest.mark.medium
def test_a_killed_import_goes_on(tmp_path, tiny_data):
    """Protects an import of hours: killed at 13 moments, from the first file into the clean-up, the same command
    makes the same set. Mutant: a shard noted before its images are written."""
    source = write_webdataset(tmp_path / "from", tiny_data)
    code, last = run_killed(ImportOptions(source, tmp_path / "whole"), 0)
    assert code == 0 and last > NUM_TRAIN + NUM_VAL
    moments = [3, *(last * tenth // 9 for tenth in range(1, 8)), last - 2, last - 1, last, last + 1, last + 2]
    for moment in moments:
        target = tmp_path / f"killed {moment}"
        assert run_killed(ImportOptions(source, target), moment)[0] == -signal.SIGKILL
        import_all(source, target)
        assert contents(target) == contents(tiny_data), moment


def test_shards_that_are_written_together_give_what_one_after_another_gives(tmp_path, tiny_data, monkeypatch, capsys):
    """Protects the set from the order in which threads write: files, fingerprint and first batch.
    Mutants: one thread; a table of rows that the threads share."""
    monkeypatch.setattr("data_import.sources.NUM_TOGETHER", 8)  # images of a shard
    source, printed = write_webdataset(tmp_path / "from", tiny_data), []
    for num_threads in (1, 4):
        target = tmp_path / f"by {num_threads}"
        with together(num_threads):
            import_all(source, target)
        assert contents(target) == contents(tiny_data)
        first, expected = (next(iter(loaders(data)[0])) for data in (target, tiny_data))
        assert all(torch.equal(*pair) for pair in zip(first, expected, strict=True))
        printed.append(capsys.readouterr().out.replace(str(target), ""))
    assert printed[0] == printed[1]
    assert f"fingerprint {cached_fingerprint(tiny_data)}" in printed[0]


def test_an_import_that_is_killed_with_several_shards_open_goes_on(tmp_path, tiny_data, monkeypatch, capsys):
    """Protects images of which a killed import has written a part: four shards are open, and two images of each are
    there. Mutants: files that are there are not written again; a shard noted before its images are written."""
    monkeypatch.setattr("data_import.sources.NUM_TOGETHER", 8)  # images of a shard
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    assert kill_with_open_shards(ImportOptions(source, target), 4) == -signal.SIGKILL
    written = [path for path in (target / WORKSHOP).rglob("*.JPEG")]
    assert len(written) == 8 and not [*target.glob("train")]
    written[0].write_bytes(bytes(1 << 20))  # more than the image has
    import_all(source, target)
    assert "going on after 0 shards" in capsys.readouterr().out
    assert contents(target) == contents(tiny_data)


def test_a_finished_shard_is_not_read_again(tmp_path, tiny_data, capsys):
    """Protects the hours that a killed import has worked. A shard whose file has changed is read again."""
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


def test_a_boot_begins_again(tmp_path, tiny_data, capsys):
    """Protects from a power cut, after which images that were noted may be empty. Mutant: the boot is not compared."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    journal = target / WORKSHOP / "journal"
    journal.write_text(journal.read_text().replace(json.loads(journal.read_text().split("\n")[0])[1], "another boot"))
    import_all(source, target)
    assert "the machine has started again" in capsys.readouterr().out
    assert contents(target) == contents(tiny_data)


def test_another_kind_of_source_does_not_go_on(tmp_path, tiny_data):
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    assert "of an import from WebDataset" in refused(write_parquet(tmp_path / "other", tiny_data), target)
