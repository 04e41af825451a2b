"""A packed file, which may come from another machine: a run reads it, or says what is wrong with it."""

import contextlib
import os
from pathlib import Path

import numpy
import torch
from fuzz.edits import edited, edited_arrays
from hypothesis import strategies as st
from PIL import Image

from benchmarks.common.config.config import Config
from benchmarks.common.data.decode import open_decoder
from benchmarks.common.data.image_dataset import ImageDataset, packed_pixels_decoder
from benchmarks.common.data.packed import open_packs
from benchmarks.common.system.errors import UserError
from scripts.setup import pack

SIZE, MOST_READ = 16, 50
DECODERS_BY_PACK = {"full": packed_pixels_decoder, "jpeg256": lambda: open_decoder("pillow")}


def seeds(folder: Path) -> list[bytes]:
    """What scripts/setup/pack.py makes of eight small images."""
    rng, data = numpy.random.default_rng(0), folder.with_name("packed images")
    for part in ("train", "val"):
        for number in range(4):
            path = data / part / "ab"[number % 2] / f"{number}.JPEG"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 256, (20 + number, 24, 3), numpy.uint8)
            Image.fromarray(pixels).save(path, "JPEG")
    before = {name: os.environ.get(name) for name in ("PACKED", "XDG_CACHE_HOME")}
    os.environ |= {"PACKED": str(folder), "XDG_CACHE_HOME": str(data / "cache")}
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        for kind in DECODERS_BY_PACK:
            pack.main(pack.PackOptions(str(data), kind))
    for name, value in before.items():
        os.environ.pop(name)
        os.environ |= {name: value} if value is not None else {}
    for note in folder.rglob("*.checked"):
        note.unlink()
    return [(folder / kind / "train.safetensors").read_bytes() for kind in DECODERS_BY_PACK]


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    return edited_arrays(found, without=("images",)) | edited(found)


def attempt(content: bytes, folder: Path) -> str:
    os.environ["PACKED"] = str(folder)
    text = []
    for kind, open_pack_decoder in DECODERS_BY_PACK.items():
        (folder / kind / "train.safetensors").write_bytes(content)
        for note in (folder / kind).glob("*.checked"):
            note.unlink()
        try:
            train, val = open_packs(Config(data=str(folder / "nowhere"), loader="packed", pack=kind))
            images = ImageDataset(train, open_pack_decoder, SIZE, 0, train.classes)
            out = torch.zeros(1, SIZE, SIZE, 3, dtype=torch.uint8)
            for index in range(min(len(images), MOST_READ)):
                images.read_into(out, [(0, index, index)])
            ImageDataset(val, open_pack_decoder, SIZE, 0, train.classes)
            text.append("read")
        except UserError:
            text.append("refused")
    return " ".join(sorted(set(text)))
