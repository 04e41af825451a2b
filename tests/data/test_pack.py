"""Packed files: the folder's images in the folder's order, whole or refused."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from support import NUM_TRAIN, draw_images, loaders, pixels, refusal, save, spoil

from benchmarks.common import packed
from benchmarks.common.config import PACK_KINDS
from benchmarks.common.errors import UserError
from benchmarks.common.packed import PackedSource
from scripts.data import pack

pytestmark = pytest.mark.usefixtures("own_cache")


def make(data: Path, kind: str = "full") -> Path:
    """Pack, and the file of train/."""
    pack.main(pack.PackOptions(str(data), kind))
    return data / "packed" / kind / "train.safetensors"


def packed_loaders(data: Path, kind: str = "full", **changes):
    return loaders(data, loader="packed", pack=kind, **changes)


def problem(data: Path, kind: str = "full") -> str:
    with pytest.raises(UserError) as caught:
        packed_loaders(data, kind)
    return str(caught.value)


def spoil_byte(path: Path) -> None:
    """A byte of an image; a disk tells nobody."""
    whole, times = path.read_bytes(), path.stat()
    path.write_bytes(whole[:-50_000] + bytes([whole[-50_000] ^ 1]) + whole[-49_999:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("kind", PACK_KINDS)
def test_a_packed_set_has_the_folders_images_in_the_folders_order(own_data, kind):
    """The same batches, and from full files the same pixels within 1 of 255, as Pillow has them."""
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
    spoil(own_data / "train" / "top" / "top 6.JPEG", "truncated")
    make(own_data)
    assert "top 6.JPEG" in capsys.readouterr().out
    assert "was not readable when it was packed" in refusal(packed_loaders(own_data)[0])


def test_packed_jpegs_are_checked_whenever_they_are_read(own_data):
    spoil_byte(path := make(own_data, "jpeg256"))
    message = refusal(packed_loaders(own_data, "jpeg256")[0])
    assert f"of {path}" in message and "it does not have its checksum" in message


def test_a_second_pack_keeps_a_file_of_these_images_and_replaces_others(own_data, capsys):
    path = make(own_data)
    written = path.stat().st_mtime_ns
    make(own_data)
    assert path.stat().st_mtime_ns == written and f"is there: {NUM_TRAIN} images" in capsys.readouterr().out
    path.write_bytes(path.read_bytes()[:-1])
    make(own_data)
    assert "cannot be used" in capsys.readouterr().out and len(PackedSource(path)) == NUM_TRAIN
    draw_images(own_data / "train", NUM_TRAIN + 4, seed=0)  # four more
    assert len(PackedSource(make(own_data))) == NUM_TRAIN + 4


def test_files_that_are_cut_off_or_of_other_images_are_refused(own_data, monkeypatch, tmp_path):
    """Also where train/ and val/ are gone, and a val/ may hold what was trained on."""
    assert f"./bench data pack --pack full --data '{own_data}'" in problem(own_data)
    path, other = make(own_data), tmp_path / "other images"
    whole, val = path.read_bytes(), path.with_name("val.safetensors").read_bytes()
    for content in [whole[:0], whole[:-1]]:
        path.write_bytes(content)
        assert "cannot be used" in problem(own_data), len(content)
    path.write_bytes(make(own_data, "256").read_bytes())
    assert "it holds train 256, not train full" in problem(own_data)
    path.write_bytes(val)
    assert "it holds val full, not train full" in problem(own_data)
    path.write_bytes(whole)
    with monkeypatch.context() as patch:
        patch.setattr(packed, "VERSION", "5")
        assert "it is not a packed file of version 5" in problem(own_data)
    for part, num_images in (("train", 8), ("val", 4)):
        draw_images(other / part, num_images, seed=2)
    other_val = make(other).with_name("val.safetensors")
    path.with_name("val.safetensors").write_bytes(other_val.read_bytes())
    assert "it is of other images than" in problem(own_data)
    for part in ("train", "val"):
        shutil.rmtree(own_data / part)
    assert "val.safetensors cannot be used: it is of other images than train" in problem(own_data)
    path.with_name("val.safetensors").write_bytes(val)
    packed_loaders(own_data)  # the packed files alone are enough
