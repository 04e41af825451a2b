"""Every decoder gives Pillow's pixels, from torchvision's boxes, and names what nobody can read.

.venv/bin/python -m pytest tests/benchmarks/test_decode.py
"""

import dataclasses
import io
import re
import subprocess
import sys
import typing

import numpy
import pytest
import torch
from hard_images import BAD, BY_PILLOW, HARD, encoded, photograph
from PIL import Image
from scipy.stats import kstest
from support import ROOT, environment, loaders, pixels, save
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks.common import images
from benchmarks.common.config import FIELD_TYPES, Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import (
    DECODERS,
    NUMBERS_PER_IMAGE,
    Crop,
    FolderSource,
    ImageDataset,
    centre_crop,
    import_problem,
    open_decoder,
    random_crop,
    random_numbers,
    resize_into,
    resolve_decoder,
)
from scripts.verify.reference_images import REFERENCE_DECODERS

HERE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(import_problem(name)), reason=str(import_problem(name))))
    for name in DECODERS
]


def test_a_decoder_is_known_everywhere():
    """Protects a new decoder from being a value of the field that the loader, or the proof's reference, cannot open."""
    assert {"auto", *DECODERS} == set(typing.get_args(FIELD_TYPES["decoder"]))
    assert {"pillow", *REFERENCE_DECODERS} == set(DECODERS)


@pytest.mark.parametrize("size", [224, 32])
@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", HERE)
def test_pixels_are_torchvisions(name, hard, size):
    """Protects training from a decoder that upsamples, turns or rounds otherwise: v2 on Pillow's image is the truth.

    By Pillow they are equal, by the others within 1 of 255, all these millions of values. Elsewhere one of 4.9 million
    was 2 off (tests/data/test_pack.py): two kernels round twice.
    """
    content = HARD[hard]()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    centre = v2.Compose([v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)])

    def at_random(view):
        cropped = F.resized_crop(image, view.top, view.left, view.height, view.width, [size, size], antialias=True)
        return F.hflip(cropped) if view.flip else cropped

    read, out = open_decoder(name), torch.empty(size, size, 3, dtype=torch.uint8)
    views = [(random_crop(size, numbers), at_random) for numbers in random_numbers(0, 1, 0, 8)]
    for choose, transform in [*views, (centre_crop(size), lambda _: centre(image))]:
        box, view, by_pillow = read(content, choose)
        expected = F.pil_to_tensor(transform(view)).permute(1, 2, 0)
        resize_into(box, view, out)
        difference = (out.int() - expected.int()).abs().max()
        assert difference <= (name != "pillow"), f"{difference} of 255"
        if name == "nvimgcodec":
            assert by_pillow == (hard in BY_PILLOW)


def draw_from(patch, of_tries, of_corner) -> None:
    """Give torchvision these numbers in [0, 1) where it asks torch for random ones."""
    patch.setattr(torch.Tensor, "uniform_", lambda self, a, b: self.fill_(a + (b - a) * next(of_tries)))
    patch.setattr(torch, "randint", lambda a, b, size: torch.tensor([a + int(next(of_corner) * (b - a))]))


def test_boxes_are_torchvisions(monkeypatch):
    """Protects the distribution of crops: from the same random numbers, torchvision's class makes the same boxes."""
    transform, rng = v2.RandomResizedCrop(64), numpy.random.default_rng(0)
    sides = [(1, 1), (1, 900), (900, 1), (20, 27), (3, 4), (333, 500), (6000, 8000)]
    sides += rng.integers(1, 700, (300, 2)).tolist()
    num_flips = 0
    for (height, width), numbers in zip(sides, random_numbers(5, 0, 0, len(sides)), strict=True):
        view, image = random_crop(64, numbers)(height, width), torch.empty(3, height, width)
        with monkeypatch.context() as patch:
            draw_from(patch, iter(numbers[:20]), iter(numbers[20:22]))
            requested = transform.make_params([image])
        assert view[:4] == tuple(requested[name] for name in ("top", "left", "height", "width"))
        num_flips += view.flip
    assert 100 < num_flips < 200


def test_numbers_belong_to_a_position_and_are_fair():
    """Protects crops from their batch, and training from crops that repeat: neighbours, epochs and seeds differ."""
    whole = numpy.array(random_numbers(3, 1, 0, 4000))
    assert whole.shape == (4000, NUMBERS_PER_IMAGE) and whole.min() >= 0 and whole.max() < 1
    assert whole[37:50].tolist() == random_numbers(3, 1, 37, 13)
    assert len(numpy.unique(whole)) == whole.size
    for seed, epoch in ((3, 2), (4, 1), (2**64 - 1, 1)):
        other = numpy.array(random_numbers(seed, epoch, 0, 4000))
        assert not numpy.isin(other, whole).any() and abs(numpy.corrcoef(other.ravel(), whole.ravel())[0, 1]) < 0.01
    assert (kstest(whole, "uniform", axis=0).pvalue > 1e-4).all()
    assert (abs(numpy.corrcoef(whole.T) - numpy.eye(NUMBERS_PER_IMAGE)) < 0.08).all()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", HERE)
def test_what_no_decoder_reads_is_named_and_another_image_takes_its_place(name, bad, tmp_path):
    """A crop above the place where a file is cut off would look whole. No other format reaches a decoder."""
    content, reason = BAD[bad]
    for place, image in ((0, content()), (1, encoded(photograph(64, 64)))):
        (tmp_path / f"class {place}").mkdir()
        (tmp_path / f"class {place}" / "1.JPEG").write_bytes(image)
    source, out = FolderSource(tmp_path), torch.empty(1, 32, 32, 3, dtype=torch.uint8)
    images = ImageDataset(source, lambda: open_decoder(name), 32, 0, source.classes)
    for images.replace_unreadable, images.augment in ((False, False), (False, True), (True, True)):
        targets, (problem,), _ = images.read_into(out, [(0, 0, 0)])
        assert targets == ([1] if images.replace_unreadable else [])
        assert re.fullmatch(rf"'{re.escape(source.name(0))}' is not a readable image \(.*\)", problem)
        assert re.search(reason, problem), problem


def test_what_pillow_had_to_read_is_counted(own_data):
    """Protects a slow epoch from being a riddle: the loader says how many images its decoder left to Pillow."""
    if import_problem("nvimgcodec"):
        pytest.skip(import_problem("nvimgcodec"))
    save(own_data / "train" / "left" / "print.JPEG", "CMYK")
    for workers in (0, 2):
        train, _ = loaders(own_data, workers=workers, global_batch=41)
        pixels(train)
        assert train.num_by_pillow == 1 and train.num_bad_files == 0


def test_auto_is_the_first_that_loads_and_a_missing_one_says_how_to_get_it(monkeypatch):
    """Protects `auto` from an old glibc, and a run from a decoder other than the one it asked for."""

    def missing():
        raise ImportError("libc.so.6: version `GLIBC_2.99' not found")

    for name in ("nvimgcodec", "torchcodec"):
        monkeypatch.setitem(images.DECODERS, name, dataclasses.replace(images.DECODERS[name], open=missing))
    import_problem.cache_clear()
    try:
        assert resolve_decoder(Config()) == "pillow"
        with pytest.raises(UserError, match=r"GLIBC_2.99.*pip install nvidia-nvimgcodec-cu13, or use --decoder auto"):
            resolve_decoder(Config(decoder="nvimgcodec"))
    finally:
        import_problem.cache_clear()
    assert resolve_decoder(Config(loader="synthetic")) == "" == resolve_decoder(Config(loader="packed"))


@pytest.mark.medium
def test_nothing_is_printed_about_libraries_that_nobody_requested(tiny_data):
    """Protects the user's terminal from nvimgcodec, which calls it an error that nvJPEG2000 is not installed."""
    code = f"""
from benchmarks.common.images import *
from benchmarks.common.images import *
import functools, sys
from pathlib import Path
images = FolderSource(Path({str(tiny_data)!r}) / "train")
name = resolve_decoder(Config())
one = ImageDataset(images, functools.partial(open_decoder, name), 32, 0, images.classes)
out = torch.empty(1, 32, 32, 3, dtype=torch.uint8)
print(tuple(one.read_into(out, [(0, 0, 0)])))
print("still heard", file=sys.stderr)
"""
    env = environment(PYTHONPATH=":".join(sys.path))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.stdout == "([0], [], 0)\n" and done.stderr == "still heard\n"


def test_a_flip_is_a_flip():
    """Protects every row, also where the size leaves a smaller last piece."""
    for size in (7, 224, 331):
        box = torch.randint(0, 256, (size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(size))
        out = torch.empty_like(box)
        resize_into(box, Crop(0, 0, size, size, size, size, flip=True), out)
        assert torch.equal(out, box.flip(1))
