"""An image file of a data set, whatever its name says: its pixels, or a sentence that names it."""

import io
import os
from pathlib import Path

import torch
from fuzz.edits import edited
from hard_images import HARD
from hypothesis import strategies as st
from PIL import Image

from benchmarks.common.data.decode import AUTO_DECODERS, import_problem, open_decoder
from benchmarks.common.data.image_dataset import FolderSource, ImageDataset
from benchmarks.common.system.errors import UserError

SIZE = 32  # pixels
OTHER_KINDS = ("PNG", "GIF", "BMP", "TIFF", "WEBP", "JPEG2000", "PPM", "ICO", "TGA", "PCX", "SGI", "EPS", "PDF", "DDS")
DATA = Path(__file__).resolve().parents[3] / "data" / "imagenet-mini"
TOKENS = [b"\xff\xd8\xff", b"\xff\xd9", b"\xff\xc0", b"\xff\xda", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"]
TOKENS += [b"\x89PNG\r\n\x1a\n", b"\0\0\0\x0cjP  \r\n\x87\n", b"GIF89a", b"II*\0", b"RIFF\xff\xff\xff\x7fWEBP", b"IDAT"]


def seeds(folder: Path) -> list[bytes]:
    """Real photographs, hard ones, and other formats than JPEG."""
    (folder / "a").mkdir()
    photographs = sorted(DATA.glob("train/*/*.JPEG"), key=os.path.getsize)[:6]
    hard = [make() for name, make in HARD.items() if name != "8000 pixels"]
    small, others = Image.radial_gradient("L").resize((40, 30)).convert("RGB"), []
    for kind in OTHER_KINDS:
        out = io.BytesIO()
        small.save(out, kind)
        others.append(out.getvalue())
    for name in AUTO_DECODERS:  # here, so that each new child has the libraries
        import_problem(name)
    return [path.read_bytes() for path in photographs] + hard + others


def inputs(found: list[bytes]) -> st.SearchStrategy[bytes]:
    return edited(found, TOKENS)


def attempt(content: bytes, folder: Path) -> str:
    (folder / "a" / "x.JPEG").write_bytes(content)
    source = FolderSource(folder)
    text = []
    for name in AUTO_DECODERS:
        if import_problem(name) is not None:
            continue
        for augment in (False, True):
            one = ImageDataset(source, lambda name=name: open_decoder(name), SIZE, 0, source.classes)
            one.augment = augment
            try:
                targets, problems, _ = one.read_into(torch.zeros(1, SIZE, SIZE, 3, dtype=torch.uint8), [(0, 0, 0)])
            except UserError:
                text.append("refused")
                continue
            assert len(targets) + len(problems) == 1
            assert not problems or "x.JPEG" in problems[0], "the file is not named"
            text.append("read" if targets else "refused")
    return " ".join(sorted(set(text)))
