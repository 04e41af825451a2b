"""Packed files: the folder's images in the folder's order, whole or refused, after any kill.

.venv/bin/python -m pytest tests/data/test_pack.py
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import NUM_TRAIN, NUM_VAL, ROOT, draw_images, environment, loaders, pixels, refusal, save, spoil

from benchmarks.common import packed
from benchmarks.common.config import PACK_KINDS
from benchmarks.common.errors import UserError
from benchmarks.common.packed import PackedSource
from scripts.data import pack, pack_target, write_shards

pytestmark = pytest.mark.usefixtures("own_cache")


def make(data: Path, kind: str = "full") -> Path:
    """Pack, and the file of train/."""
    pack.main(pack.PackOptions(str(data), kind))
    return data / "packed" / kind / "train.safetensors"


def packed_loaders(data: Path, kind: str = "full", **changes):
    return loaders(data, loader="packed", pack=kind, **changes)


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_a_packed_set_has_the_folders_images_in_the_folders_order(own_data, kind):
    """Protects comparisons: the same batches, and from full files the same pixels within 1 of 255, as Pillow has them.

    The images are 80 x 60, which 256 leaves as they are; only JPEGs change by being written again.
    """
    make(own_data, kind)
    for own, of_folder in zip(packed_loaders(own_data, kind), loaders(own_data, decoder="pillow"), strict=True):
        images, targets = pixels(own, epoch=1)
        expected, expected_targets = pixels(of_folder, epoch=1)
        assert torch.equal(targets, expected_targets) and own.classes == of_folder.classes
        difference = ((images - expected) * of_folder.std).abs()
        if kind == "jpeg256":
            assert difference.mean() < 10
        else:  # the two kernels round twice: 1 value of 4.9 million was 2 off
            assert difference.max() < 2.01 and (difference > 1.01).sum() <= 2 and difference.mean() < 0.1


def test_large_images_are_shrunk_to_256_pixels_on_the_shorter_side(own_data):
    save(own_data / "train" / "left" / "a large one.JPEG", "L", (700, 400))
    for kind in PACK_KINDS:
        of_train = PackedSource(make(own_data, kind))
        shapes = {tuple(of_train.shapes[index].tolist()) for index in range(len(of_train))}
        assert shapes == {(60, 80), (400, 700) if kind == "full" else (256, 448)}


def test_an_image_that_cannot_be_read_is_treated_as_in_the_folder(own_data, capsys):
    """Protects --skip-bad-files: the same images count as bad, and take the same place."""
    spoil(own_data / "train" / "top" / "top 6.JPEG", "truncated")
    make(own_data)
    assert "top 6.JPEG" in capsys.readouterr().out
    assert "was not readable when it was packed" in refusal(packed_loaders(own_data)[0])
    train, _ = packed_loaders(own_data, skip_bad_files=True)
    assert len(pixels(train)[0]) == NUM_TRAIN and train.num_bad_files == 1


# --- files that are not what they should be ---------------------------------------------------------------------


def problem(data: Path, kind: str = "full") -> str:
    with pytest.raises(UserError) as caught:
        packed_loaders(data, kind)
    return str(caught.value)


def test_no_packed_file_says_how_to_get_one(own_data):
    message = problem(own_data, "jpeg256")
    assert f"./bench data pack --pack jpeg256 --data '{own_data}'" in message and "No such file" in message


def test_a_file_cut_off_anywhere_is_refused(own_data):
    path = make(own_data)
    whole = path.read_bytes()
    for length in [0, 7, 8, 100, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        assert "cannot be used" in problem(own_data), length
    path.write_bytes(whole + b"\0")
    assert "not what its header says" in problem(own_data)


def test_make_pack_mends_a_damaged_file_and_keeps_a_whole_one(own_data, capsys):
    path = make(own_data)
    whole, written = path.read_bytes(), path.stat().st_mtime_ns
    make(own_data)
    assert path.stat().st_mtime_ns == written and f"is whole: {NUM_TRAIN} images" in capsys.readouterr().out
    images = stored(path)
    path.write_bytes(whole[:-50_000] + bytes([whole[-50_000] ^ 1]) + whole[-49_999:])
    make(own_data)
    assert "does not have its checksum" in capsys.readouterr().out
    assert stored(path) == images


def test_two_data_sets_do_not_overwrite_each_others_packs(own_data, tmp_path, monkeypatch):
    """Protects hours of packing where PACKED names one disk for all; beside its folder an old pack makes room."""
    shared, other = tmp_path / "a large disk", tmp_path / "other images"
    for part, num_images in (("train", 8), ("val", 4)):
        draw_images(other / part, num_images, seed=2)
    make(other)
    monkeypatch.setenv("PACKED", str(shared))
    make(own_data)
    written = (shared / "full" / "train.safetensors").read_bytes()
    with pytest.raises(UserError, match=r"train.safetensors is of other images; give another folder by PACKED"):
        make(other)
    assert (shared / "full" / "train.safetensors").read_bytes() == written
    monkeypatch.delenv("PACKED")
    draw_images(other / "train", 12, seed=2)
    assert len(PackedSource(make(other))) == 12


def test_files_of_another_version_kind_or_folder_are_refused(own_data, monkeypatch):
    path = make(own_data)
    make(own_data, "256")
    other = path.parents[1] / "256" / path.name
    whole = path.read_bytes()
    shutil.copy(other, path)
    assert "it holds train 256, not train full" in problem(own_data)
    shutil.copy(path.with_name("val.safetensors"), path)
    assert "it holds val full, not train full" in problem(own_data)
    path.write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(packed, "VERSION", "5")
        assert "it is not a packed file of version 5" in problem(own_data)
    draw_images(own_data / "train", NUM_TRAIN + 4, seed=0)  # four more: the listing is older than the folder
    assert f"it is of other images than {own_data}" in problem(own_data)
    shutil.rmtree(own_data / "train")
    shutil.rmtree(own_data / "val")
    packed_loaders(own_data)  # the packed files alone are enough


def test_train_and_val_of_two_folders_are_refused_where_nothing_names_the_folder(own_data, tmp_path):
    """Protects accuracy from images of another set, such as a val/ that holds what was trained on."""
    path, other = make(own_data), tmp_path / "other images"
    for part, num_images in (("train", 8), ("val", 4)):
        draw_images(other / part, num_images, seed=2)
    shutil.copy(make(other).with_name("val.safetensors"), path.with_name("val.safetensors"))
    for part in ("train", "val"):
        shutil.rmtree(own_data / part)
    message = problem(own_data)
    assert (
        "val.safetensors cannot be used: it is of other images than train" in message
        and f"./bench data pack --pack full --data '{own_data}'" in message
    )


def test_a_packed_set_that_was_copied_from_another_node_is_read(own_data, tmp_path):
    """Of another owner, with other times, in another place. A key of the header that another version wrote is
    ignored."""
    make(own_data)
    expected, _ = pixels(packed_loaders(own_data)[0])
    copy = tmp_path / "the scratch disk of another node"
    copy.mkdir()
    subprocess.run(["cp", "-r", own_data / "packed", copy / "packed"], check=True)
    for file in (copy / "packed/full").glob("*.safetensors"):
        content = file.read_bytes()
        old = content.replace(b'"version":"4",', b'"version":"4","contents":"63-of-63-ab",', 1)
        spaces = old.index(b"     ")  # the header ends in them
        file.write_bytes(old[:spaces] + old[spaces + len(old) - len(content) :])
        os.utime(file, (0, 0))
        if not os.geteuid():
            os.chown(file, 12345, 12345)
    assert torch.equal(pixels(packed_loaders(copy)[0])[0], expected)


def test_a_folder_that_no_run_would_take_is_not_packed(own_data):
    """Protects from a traceback, and from hours for nothing: a class without images, a class that train lacks."""
    shutil.rmtree(own_data / "val")
    (own_data / "val" / "left").mkdir(parents=True)
    with pytest.raises(UserError, match="val/ has class folders without an image: 'left'"):
        make(own_data)
    draw_images(own_data / "val", 4, seed=1)
    shutil.rmtree(own_data / "train" / "left")
    with pytest.raises(UserError, match="val/ has classes that train/ lacks: 'left'"):
        make(own_data)


def test_packed_jpegs_are_checked_whenever_they_are_read(own_data):
    """Protects from what rots after it was written: the image is named, or skipped where that is asked for."""
    path = make(own_data, "jpeg256")
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 50_000)  # behind the header, before the tables
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a disk tells nobody
    message = refusal(packed_loaders(own_data, "jpeg256")[0])
    assert f"of {path}" in message and "it does not have its checksum" in message
    train, _ = packed_loaders(own_data, "jpeg256", skip_bad_files=True)
    assert len(pixels(train)[0]) == NUM_TRAIN and train.num_bad_files == 1


# --- packing that does not come to its end ----------------------------------------------------------------------


def test_a_disk_without_space_is_reported(own_data, monkeypatch):
    monkeypatch.setattr("scripts.data.progress.CHECK_BYTES", 1000)
    with pytest.raises(UserError, match=r"GB are needed in .*; free space, and the same command goes on"):
        pack.main(pack.PackOptions(str(own_data)), free_bytes=lambda folder: 1000)
    assert [path.name for path in (own_data / "packed" / "full").iterdir()] == [pack.WORKSHOP]
    make(own_data)
    assert not (own_data / "packed" / "full" / pack.WORKSHOP).exists()


SLOWLY = """
import sys, time
from scripts.data import pack, pack_target
pack.NUM_TOGETHER, encode = 3, pack_target.encode
pack_target.encode = lambda *words: (time.sleep(float(sys.argv[2])), encode(*words))[1]
pack.main(pack.PackOptions(sys.argv[1]))
"""


def stored(path: Path) -> list[tuple[int, bytes]]:
    """The class and the bytes of each image, whose places in the file are in no order."""
    of_path = PackedSource(path)
    return [(of_path.target(index), of_path.stored(index).tobytes()) for index in range(len(of_path))]


@pytest.mark.medium
def test_packing_goes_on_after_kills(own_data):
    """Protects hours of packing: SIGKILL at any moment, then the file has the images of an undisturbed run."""
    expected = stored(make(own_data))
    shutil.rmtree(own_data / "packed")
    chance, went_on = random.Random(1), 0
    folder = own_data / "packed" / "full"
    journal = folder / pack.WORKSHOP / "journal"
    for kill in range(4):
        noted = len(journal.read_text().splitlines()) if journal.exists() else 0
        process = subprocess.Popen(
            [sys.executable, "-c", SLOWLY, str(own_data), "0.05"],
            cwd=ROOT,
            env=environment(PYTHONUNBUFFERED=1),
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        while process.poll() is None and not (
            journal.exists() and len(journal.read_text().splitlines()) > max(noted, 1)
        ):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.1))
        if kill < 3:
            process.send_signal(signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
        went_on += "going on after" in output
    assert process.returncode == 0 and went_on >= 2
    assert sorted(path.name for path in folder.iterdir()) == ["train.safetensors", "val.safetensors"]
    assert stored(folder / "train.safetensors") == expected
    assert len(PackedSource(folder / "val.safetensors")) == NUM_VAL


def test_a_part_that_changed_while_nobody_wrote_is_found_at_the_end(own_data, monkeypatch):
    """Protects from wrong pixels under a note that says `finished`."""
    path = make(own_data)
    expected = stored(path)
    path.unlink()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pack_target, "write_tables", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        make(own_data)
    part = path.parent / pack.WORKSHOP / path.name
    whole = part.read_bytes()
    part.write_bytes(whole[:-5000] + bytes([whole[-5000] ^ 1]) + whole[-4999:])
    with pytest.raises(UserError, match=r"is not as it was written: image .* does not have its checksum; .* remove "):
        make(own_data)
    assert not path.exists()
    shutil.rmtree(part.parent)
    assert stored(make(own_data)) == expected


def test_packing_of_a_folder_that_changed_meanwhile_begins_anew(own_data, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(write_shards, "remove_workshop", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        make(own_data)
    next((own_data / "train" / "left").iterdir()).unlink()
    assert len(PackedSource(make(own_data))) == NUM_TRAIN - 1
