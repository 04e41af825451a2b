"""./bench data import --pack: the packed files of the folder, without the folder.

.venv/bin/python -m pytest tests/data_import/test_import_packs.py
"""

import re
import shutil
import signal
import tarfile
from pathlib import Path

import numpy
import pytest
from data_import.killed_import import kill_with_open_shards, run_killed, together
from data_import.sources import WRITERS, add, write_flat, write_webdataset
from support import NUM_TRAIN, NUM_VAL, loaders, pixels, spoil

from benchmarks.common.config.config import PACK_KINDS, Config
from benchmarks.common.data.packed import PackedSource, pack_path
from benchmarks.common.system.errors import UserError
from scripts.data_import import import_images, pack_target, progress
from scripts.data_import.journal import WORKSHOP
from scripts.options.data_options import ImportOptions
from scripts.setup import pack
from scripts.setup.check_data import check_image_folder

pytestmark = pytest.mark.usefixtures("own_cache")


def packs(data: Path, kind: str) -> list[PackedSource]:
    return [PackedSource(pack_path(Config(data=str(data), pack=kind), part)) for part in ("train", "val")]


def assert_equal_packs(data: Path, expected: Path, kind: str) -> None:
    """The same images, classes and names in the same places, whatever the order of the bytes."""
    for own, other in zip(packs(data, kind), packs(expected, kind), strict=True):
        metadata = [{**one.metadata, "checksum": ""} for one in (own, other)]
        assert metadata[0] == metadata[1] and len(own) == len(other)
        assert own.classes == other.classes
        for index in range(len(own)):
            assert own.target(index) == other.target(index)
            assert numpy.array_equal(own._stored(index), other._stored(index)), index
            assert own._shapes[index].tolist() == other._shapes[index].tolist()
        own.check("checking")


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_an_import_packs_what_the_folder_would_have_packed(own_data, tmp_path, capsys, kind):
    """Protects `packed files are those of the folder`: order, pixels, classes and fingerprint. Mutants: the
    order of the shards kept in the tables; sizes of what is stored in the fingerprint."""
    pack.main(pack.PackOptions(str(own_data), kind))
    target = tmp_path / "imagenet"
    assert import_images.main(ImportOptions(write_webdataset(tmp_path / "from", own_data), target, pack=kind)) == 0
    assert_equal_packs(target, own_data, kind)
    assert sorted(path.name for path in target.iterdir()) == ["packed"], "nothing else is left there"
    own = packs(target, kind)[0].metadata
    assert f"fingerprint {own['fingerprint']}" in capsys.readouterr().out
    with pytest.raises(UserError, match=f"it has packed files, .* --loader packed --pack {kind}"):
        check_image_folder(target)
    train, _ = loaders(target, loader="packed", pack=kind)
    assert len(pixels(train)[0]) == NUM_TRAIN


@pytest.mark.parametrize("writer", WRITERS)
def test_every_source_gives_the_same_packs(own_data, tmp_path, writer):
    pack.main(pack.PackOptions(str(own_data), "jpeg256"))
    target = tmp_path / "imagenet"
    import_images.main(ImportOptions(WRITERS[writer](tmp_path / "from", own_data), target, pack="jpeg256"))
    assert_equal_packs(target, own_data, "jpeg256")


@pytest.mark.medium
def test_a_killed_import_goes_on(own_data, tmp_path, monkeypatch):
    """Protects hours: killed at 20 moments, from the first file into the clean-up, the same command makes the same
    packs. Mutants: a shard noted before its table is written; the ends of finished shards forgotten; the journal
    removed before the tables."""
    monkeypatch.setattr("data_import.sources.NUM_TOGETHER", 8)  # images of a shard
    pack.main(pack.PackOptions(str(own_data), "256"))
    source = write_webdataset(tmp_path / "from", own_data)
    code, last = run_killed(ImportOptions(source, tmp_path / "whole", pack="256"), 0)
    assert code == 0 and last > 10
    moments = sorted({3, *(last * tenth // 9 for tenth in range(1, 8)), *range(last - 9, last + 4)})
    for moment in moments:
        target = tmp_path / f"killed {moment}"
        assert run_killed(ImportOptions(source, target, pack="256"), moment)[0] == -signal.SIGKILL
        assert import_images.main(ImportOptions(source, target, pack="256")) == 0
        assert_equal_packs(target, own_data, "256")
        assert not (target / WORKSHOP).exists(), moment


def test_shards_that_are_packed_together_give_what_the_folder_gives(own_data, tmp_path, monkeypatch):
    """Protects the places of images that four threads pack at once, and of those that go behind them after a kill with
    four shards open. Mutants: one place for two images; one thread."""
    monkeypatch.setattr("data_import.sources.NUM_TOGETHER", 8)  # images of a shard
    pack.main(pack.PackOptions(str(own_data), "256"))
    source = write_webdataset(tmp_path / "from", own_data)
    for num_threads in (1, 4):
        with together(num_threads):
            import_images.main(ImportOptions(source, tmp_path / f"by {num_threads}", pack="256"))
        assert_equal_packs(tmp_path / f"by {num_threads}", own_data, "256")
    killed = ImportOptions(source, tmp_path / "killed", pack="256")
    assert kill_with_open_shards(killed, 4) == -signal.SIGKILL
    assert import_images.main(killed) == 0
    assert_equal_packs(tmp_path / "killed", own_data, "256")


def test_an_image_that_cannot_be_decoded_is_counted(own_data, tmp_path, capsys):
    """Protects --skip-bad-files, as in a packed folder."""
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
    assert str(caught.value).isprintable(), str(caught.value)
    return str(caught.value)


def test_what_cannot_be_packed_is_refused(tiny_data, tmp_path, monkeypatch):
    """Protects a packed file that is there, a folder that another variable names, and val's name in train's file."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    alone = write_flat(tmp_path / "val alone", tiny_data)
    shutil.rmtree(alone / "train")
    assert "FROM has no train" in refused(alone, target)
    monkeypatch.setenv("PACKED", str(tmp_path / "elsewhere"))
    assert "PACKED is set" in refused(source, target)
    monkeypatch.delenv("PACKED")
    (target / "packed" / "256").mkdir(parents=True)
    (target / "packed" / "256" / "val.safetensors").touch()
    assert "is there already" in refused(source, target)
    assert not (target / WORKSHOP).exists()


def test_folders_of_images_stay_what_a_run_reads(tiny_data, tmp_path):
    """Protects a flat source that is packed in its own place, and folders of other images: a run would refuse both."""
    source = write_flat(tmp_path / "from", tiny_data)
    assert "train is there already" in refused(source, source)


def test_an_image_that_is_there_twice_is_refused(tiny_data, tmp_path):
    """Protects the counts: no file's name says it, as in folders. Mutant: no look at names."""
    source = write_webdataset(tmp_path / "from", tiny_data)
    first = sorted(source.glob("*-train-*.tar"))[0]
    shutil.copy(first, first.with_name("imagenet1k-train-9999.tar"))
    assert "is there twice in train" in refused(source, tmp_path / "two shards")
    with tarfile.open(first.with_name("imagenet1k-train-9999.tar"), "w") as archive:
        for folder in ("a", "b"):
            add(archive, f"{folder}/1.cls", b"0")
            add(archive, f"{folder}/1.jpg", b"any bytes")
    assert re.search("train-9999.tar: '1.JPEG' of class .* is there twice", refused(source, tmp_path / "one shard"))


def test_files_that_are_gone_are_no_finished_import(tiny_data, tmp_path, monkeypatch):
    """Protects from a finished import without images: somebody removed a file of .importing. Mutant: what is not there
    is taken for renamed."""
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pack_target, "list_names", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        import_images.main(ImportOptions(source, target, pack="256"))
    (target / WORKSHOP / "train.safetensors").unlink()
    assert "train.safetensors is gone; remove" in refused(source, target)


def test_an_import_of_folders_does_not_go_on_as_packs(tiny_data, tmp_path):
    source, target = write_webdataset(tmp_path / "from", tiny_data), tmp_path / "imagenet"
    with pytest.raises(UserError):
        import_images.main(ImportOptions(source, target), free_bytes=lambda folder: 0)
    assert "of an import from WebDataset, which was stopped" in refused(source, target)


def test_the_disk_is_asked_for_what_packing_takes(tiny_data, tmp_path, monkeypatch):
    """Protects the disk, and a user whose disk holds the packs and not the source: after some images it is known how
    many bytes an image takes. Mutant: bytes of the source are asked for."""
    monkeypatch.setattr(progress, "CHECK_BYTES", 1000)
    monkeypatch.setattr(progress, "RESERVE_BYTES", 0)
    monkeypatch.setattr("data_import.sources.NUM_TOGETHER", 8)  # images of a shard
    source = write_webdataset(tmp_path / "from", tiny_data)
    pixel_bytes = 3 * 80 * 60 * (NUM_TRAIN + NUM_VAL)

    def make(kind: str, free_bytes: int) -> None:
        options = ImportOptions(source, tmp_path / f"{kind} {free_bytes}", pack=kind)
        import_images.main(options, free_bytes=lambda folder: free_bytes)

    with pytest.raises(UserError, match="GB are needed"):
        make("full", pixel_bytes // 2)
    make("jpeg256", pixel_bytes // 2)
