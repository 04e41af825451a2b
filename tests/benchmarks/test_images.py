"""Every decoder gives Pillow's pixels, from torchvision's boxes, and names what nobody can read."""

import dataclasses
import io

import numpy
import pytest
import torch
from hard_images import BAD, HARD
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from benchmarks.common import images
from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import (
    DECODERS,
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

HERE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(import_problem(name)), reason=str(import_problem(name))))
    for name in DECODERS
]


@pytest.mark.parametrize("hard", HARD)
@pytest.mark.parametrize("name", HERE)
def test_pixels_are_torchvisions(name, hard, size=224):
    """v2 on Pillow's image is the truth: decoders upsample, turn and round in ways of their own."""
    content = HARD[hard]()
    image = Image.open(io.BytesIO(content)).convert("RGB")
    centre = v2.Compose([v2.Resize(size * 256 // 224, antialias=True), v2.CenterCrop(size)])

    def at_random(view):
        cropped = F.resized_crop(image, view.top, view.left, view.height, view.width, [size, size], antialias=True)
        return F.hflip(cropped) if view.flip else cropped

    read, out = open_decoder(name), torch.empty(size, size, 3, dtype=torch.uint8)
    views = [(random_crop(size, numbers), at_random) for numbers in random_numbers(0, 1, 0, 4)]
    for choose, transform in [*views, (centre_crop(size), lambda _: centre(image))]:
        box, view = read(content, choose)
        expected = F.pil_to_tensor(transform(view)).permute(1, 2, 0)
        resize_into(box, view, out)
        assert (out.int() - expected.int()).abs().max() <= (name != "pillow")


def test_boxes_are_torchvisions(monkeypatch):
    """From the same random numbers."""
    transform, rng = v2.RandomResizedCrop(64), numpy.random.default_rng(0)
    sides = [(1, 1), (1, 900), (900, 1), (20, 27), (3, 4), (6000, 8000), *rng.integers(1, 700, (300, 2)).tolist()]
    num_flips = 0
    for (height, width), numbers in zip(sides, random_numbers(5, 0, 0, len(sides)), strict=True):
        view, image = random_crop(64, numbers)(height, width), torch.empty(3, height, width)
        of_tries, of_corner = iter(numbers[:20]), iter(numbers[20:22])
        with monkeypatch.context() as patch:  # torchvision draws these numbers
            patch.setattr(torch.Tensor, "uniform_", lambda self, a, b, of=of_tries: self.fill_(a + (b - a) * next(of)))
            patch.setattr(
                torch, "randint", lambda a, b, size, of=of_corner: torch.tensor([a + int(next(of) * (b - a))])
            )
            requested = transform.make_params([image])
        assert view[:4] == tuple(requested[name] for name in ("top", "left", "height", "width"))
        num_flips += view.flip
    assert 100 < num_flips < 200


def test_random_numbers_belong_to_a_position():
    whole = numpy.array(random_numbers(3, 1, 0, 4000))
    assert whole[37:50].tolist() == random_numbers(3, 1, 37, 13)
    assert len(numpy.unique(whole)) == whole.size
    for seed, epoch in ((3, 2), (4, 1), (2**64 - 1, 1)):
        assert not numpy.isin(random_numbers(seed, epoch, 0, 4000), whole).any()


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", HERE)
def test_what_no_decoder_reads_is_named(name, bad, tmp_path):
    """A crop above the place where a file is cut off would look whole."""
    (tmp_path / "a class").mkdir()
    (tmp_path / "a class" / "1.JPEG").write_bytes(BAD[bad]())
    source, out = FolderSource(tmp_path), torch.empty(1, 32, 32, 3, dtype=torch.uint8)
    dataset = ImageDataset(source, lambda: open_decoder(name), 32, 0, source.classes)
    for dataset.augment in (False, True):
        with pytest.raises(UserError, match=r"1\.JPEG"):
            dataset.read_into(out, [(0, 0, 0)])


def test_auto_is_the_first_that_loads_and_a_missing_one_says_how_to_get_it(monkeypatch):
    def missing():
        raise ImportError("libc.so.6: version `GLIBC_2.99' not found")

    for name in ("nvimgcodec", "torchcodec"):
        monkeypatch.setitem(images.DECODERS, name, dataclasses.replace(images.DECODERS[name], open=missing))
    import_problem.cache_clear()
    try:
        assert resolve_decoder(Config()) == "pillow"
        with pytest.raises(UserError, match=r"GLIBC_2.99.*pip install nvidia-nvimgcodec-cu13"):
            resolve_decoder(Config(decoder="nvimgcodec"))
    finally:
        import_problem.cache_clear()
    assert resolve_decoder(Config(loader="synthetic")) == "" == resolve_decoder(Config(loader="packed"))
