"""./bench data import --pack: the packed files of the folder, without the folder.

.venv/bin/python -m pytest tests/data/test_import_packs.py
"""

import shutil
import signal
from pathlib import Path

import numpy
import pytest
from data.killed_import import kill_with_open_shards, together
from data.sources import WRITERS, numbered, write_flat, write_webdataset
from support import NUM_TRAIN, NUM_VAL, loaders, pixels, spoil

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.packed import PackedSource, pack_path
from scripts.data import import_images, pack, progress
from scripts.data.check import check_image_folder
from scripts.data.folder_target import WORKSHOP
from scripts.data.pack_target import check_pack
from scripts.options.data_options import ImportOptions

pytestmark = pytest.mark.usefixtures("own_cache")


def packs(data: Path, kind: str) -> list[PackedSource]:
    return [PackedSource(pack_path(Config(data=str(data), pack=kind), part)) for part in ("train", "val")]


def assert_equal_packs(data: Path, expected: Path, kind: str) -> None:
    """The same images, classes and names in the same places, whatever the order of the bytes."""
    for own, other in zip(packs(data, kind), packs(expected, kind), strict=True):
        metadata = [{**one.metadata, "checksum": ""} for one in (own, other)]
        assert metadata[0] == metadata[1] and len(own) == len(other)
        for index in range(len(own)):
            assert own.target(index) == other.target(index)
            assert numpy.array_equal(own.stored(index), other.stored(index)), index
            assert own.shapes[index].tolist() == other.shapes[index].tolist()
        check_pack(own)


@pytest.mark.parametrize(
    ("writer", "kind"), [("WebDataset", "full"), ("Parquet", "256"), *((name, "jpeg256") for name in WRITERS)]
)
def test_an_import_packs_what_the_folder_would_have_packed(own_data, tmp_path, capsys, writer, kind):
    """Order, pixels, classes and fingerprint."""
    data = numbered(tmp_path / "numbered", own_data)
    pack.main(pack.PackOptions(str(data), kind))
    target = tmp_path / "imagenet"
    source = WRITERS[writer](tmp_path / "from", data)
    assert import_images.main(ImportOptions(source, target, pack=kind)) == 0
    assert_equal_packs(target, data, kind)
    assert sorted(path.name for path in target.iterdir()) == ["packed"], "nothing else is left there"
    assert f"fingerprint {packs(target, kind)[0].metadata['fingerprint']}" in capsys.readouterr().out
    with pytest.raises(UserError, match=f"it has packed files, .* --loader packed --pack {kind}"):
        check_image_folder(target)
    train, _ = loaders(target, loader="packed", pack=kind)
    assert len(pixels(train)[0]) == NUM_TRAIN


def test_a_killed_import_goes_on(own_data, tmp_path, monkeypatch):
    """Killed with four shards open; new images go behind those of finished shards."""
    monkeypatch.setattr("data.sources.NUM_TOGETHER", 8)  # images of a shard
    pack.main(pack.PackOptions(str(own_data), "256"))
    source = write_webdataset(tmp_path / "from", own_data)
    killed = ImportOptions(source, tmp_path / "killed", pack="256")
    assert kill_with_open_shards(killed, 4) == -signal.SIGKILL
    with together(4):
        assert import_images.main(killed) == 0
    assert_equal_packs(tmp_path / "killed", own_data, "256")


def test_an_image_that_cannot_be_decoded_is_counted(own_data, tmp_path, capsys):
    """As in a packed folder."""
    spoil(own_data / "train" / "top" / "top 6.JPEG", "truncated")
    pack.main(pack.PackOptions(str(own_data), "full"))
    target = tmp_path / "imagenet"
    capsys.readouterr()
    import_images.main(ImportOptions(write_webdataset(tmp_path / "from", own_data), target, pack="full"))
    assert "warning: 1 not readable" in capsys.readouterr().out
    assert_equal_packs(target, own_data, "full")


def refused(source: Path, target: Path) -> str:
    with pytest.raises(UserError) as caught:
        import_images.main(ImportOptions(source, target, pack="256"))
    return str(caught.value)


def test_what_cannot_be_packed_is_refused(tiny_data, tmp_path, monkeypatch):
    """val's name is in train's file; a folder that another variable names, and files that are there, stay."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    alone = write_flat(tmp_path / "val alone", tiny_data)
    assert "train is there already" in refused(alone, alone)
    shutil.rmtree(alone / "train")
    assert "FROM has no train" in refused(alone, target)
    monkeypatch.setenv("PACKED", str(tmp_path / "elsewhere"))
    assert "PACKED is set" in refused(source, target)
    monkeypatch.delenv("PACKED")
    (target / "packed" / "256").mkdir(parents=True)
    (target / "packed" / "256" / "val.safetensors").touch()
    assert "is there already" in refused(source, target)
    assert not (target / WORKSHOP).exists()


def test_an_image_that_is_there_twice_is_refused(tiny_data, tmp_path):
    """No file's name says it, as in folders."""
    source = write_webdataset(tmp_path / "from", tiny_data)
    first = sorted(source.glob("*-train-*.tar"))[0]
    shutil.copy(first, first.with_name("again-train-0000.tar"))
    assert "is there twice in train" in refused(source, tmp_path / "imagenet")


def test_the_disk_is_asked_for_what_packing_takes(tiny_data, tmp_path, monkeypatch):
    """After some images it is known how many bytes an image takes."""
    monkeypatch.setattr(progress, "CHECK_BYTES", 1000)
    monkeypatch.setattr(progress, "RESERVE_BYTES", 0)
    monkeypatch.setattr("data.sources.NUM_TOGETHER", 8)  # images of a shard
    source = write_webdataset(tmp_path / "from", tiny_data)
    pixel_bytes = 3 * 80 * 60 * (NUM_TRAIN + NUM_VAL)

    def make(kind: str, free_bytes: int) -> None:
        options = ImportOptions(source, tmp_path / f"{kind} {free_bytes}", pack=kind)
        import_images.main(options, free_bytes=lambda folder: free_bytes)

    with pytest.raises(UserError, match="GB are needed"):
        make("full", pixel_bytes // 2)
    make("jpeg256", pixel_bytes // 2)
