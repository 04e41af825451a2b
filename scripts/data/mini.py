"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    ./bench data make [--output data/imagenet-mini]

Each photograph is one class. A straight line cuts it in two: train crops come from one side, val crops from the other.
manifest.json has the credits, and each image's box of source pixels. A folder that is there is left alone.
"""

import importlib.util
import io
import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from benchmarks.common.errors import UserError
from scripts.data.options import MakeDatasetOptions

NUM_IMAGES = {"train": 40, "val": 11}  # of each class
# The usual sizes (width, height) of ImageNet's files, and the share of each here.
SIZES_PX = [(500, 375), (500, 333), (375, 500), (333, 500)]
SIZE_SHARES = [0.5, 0.2, 0.2, 0.1]
# They bring the mean size near ImageNet's 110 KB, so that reading and decoding cost what they cost there.
GRAIN_SD = 5.0
JPEG_QUALITY = 97

Box = tuple[int, int, int, int]  # left, top, right, bottom in source pixels; right and bottom are outside


class Photograph(NamedTuple):
    file: str  # in scikit-image's data folder
    cut: str  # "x": train is left of the line and val right of it; "y": train above, val below
    at: float  # where the line is, as a share of the width or height
    credit: str  # as scikit-image documents it


PHOTOGRAPHS = {
    "astronaut": Photograph("astronaut.png", "y", 0.60, "NASA, public domain, https://flic.kr/p/r9qvLn"),
    "brick": Photograph("brick.png", "x", 0.65, "CC0Textures, Bricks25, CC0"),
    "cat": Photograph("chelsea.png", "x", 0.62, "Stefan van der Walt, CC0"),
    "coffee": Photograph("coffee.png", "x", 0.62, "Rachel Michetti, courtesy of Pikolo Espresso Bar, CC0"),
    "coins": Photograph("coins.png", "x", 0.62, "Brooklyn Museum, no known copyright restrictions"),
    "galaxies": Photograph("hubble_deep_field.jpg", "x", 0.65, "NASA, HubbleSite 2012/37, public domain"),
    "grass": Photograph("grass.png", "x", 0.65, "linolafett on DeviantArt, Grass-01, CC0"),
    "gravel": Photograph("gravel.png", "x", 0.65, "CC0Textures, Gravel04, CC0"),
    "motorcycle": Photograph(
        "motorcycle_left.png", "x", 0.60, "Middlebury 2014 stereo benchmark, D. Scharstein et al., GCPR 2014"
    ),
    "retina": Photograph("retina.jpg", "y", 0.65, "Mikael Häggström, 2014, Wikimedia Commons, CC0"),
    "rocket": Photograph("rocket.jpg", "x", 0.65, "SpaceX Photos, public domain"),
    "tissue": Photograph(
        "ihc.png", "y", 0.60, "Center for Microscopy and Molecular Imaging, no known copyright restrictions"
    ),
}


def photograph_folder() -> Path:
    """Without an import of scikit-image, which takes seconds."""
    spec = importlib.util.find_spec("skimage")
    places = spec.submodule_search_locations if spec else None
    folder = Path(places[0], "data") if places else Path()
    if missing := [one.file for one in PHOTOGRAPHS.values() if not (folder / one.file).is_file()]:
        raise UserError(
            f"scikit-image 0.26, whose photographs this cuts, is not here ({missing[0]}): run ./bench setup, or set "
            "--data to a folder of your own"
        )
    return folder


def split(width: int, height: int, photograph: Photograph) -> dict[str, Box]:
    """Two regions without a common pixel."""
    x = round(width * photograph.at) if photograph.cut == "x" else 0
    y = round(height * photograph.at) if photograph.cut == "y" else 0
    return {"train": (0, 0, x or width, y or height), "val": (x, y, width, height)}


def make_image(photograph: Image.Image, region: Box, rng: np.random.Generator) -> tuple[bytes, Box]:
    """A JPEG cut at random, of the shape of one of SIZES_PX, 0.5 to 1 times as wide as fits, and its box of source
    pixels. Brightness and contrast vary by 10 %."""
    left, top, right, bottom = region
    width, height = SIZES_PX[rng.choice(len(SIZES_PX), p=SIZE_SHARES)]
    scale = rng.uniform(0.5, 1.0) * min((right - left) / width, (bottom - top) / height)
    box_width, box_height = int(width * scale), int(height * scale)
    x = left + int(rng.integers(right - left - box_width + 1))
    y = top + int(rng.integers(bottom - top - box_height + 1))
    box = (x, y, x + box_width, y + box_height)
    # Crop first: a resampling filter that runs on the whole photograph reads pixels beyond the box.
    resized = photograph.crop(box).resize((width, height), Image.Resampling.BICUBIC)
    brightness, contrast = rng.uniform(0.9, 1.1, size=2).astype(np.float32)
    pixels = (np.asarray(resized, dtype=np.float32) - 128) * contrast + 128 * brightness
    pixels += np.float32(GRAIN_SD) * rng.standard_normal((height, width, 1), dtype=np.float32)
    jpeg = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(jpeg, "JPEG", quality=JPEG_QUALITY)
    return jpeg.getvalue(), box


def make_folder(folder: Path) -> None:
    """train/, val/ and manifest.json in a new `folder`. Each file depends on its name only."""
    source, boxes = photograph_folder(), {}
    with tqdm(
        total=len(PHOTOGRAPHS) * sum(NUM_IMAGES.values()), desc="imagenet-mini", unit="image", disable=None
    ) as bar:
        for name, photograph in PHOTOGRAPHS.items():
            image = Image.open(source / photograph.file, formats=("JPEG", "PNG")).convert("RGB")
            for part, region in split(*image.size, photograph).items():
                (folder / part / name).mkdir(parents=True)
                for index in range(NUM_IMAGES[part]):
                    file = f"{part}/{name}/{name}_{index:04d}.JPEG"
                    jpeg, box = make_image(image, region, np.random.default_rng([0, *file.encode()]))
                    (folder / file).write_bytes(jpeg)
                    boxes[file] = box
                    bar.update()
    credits = {name: {"file": photograph.file, "credit": photograph.credit} for name, photograph in PHOTOGRAPHS.items()}
    manifest = {"source": "photographs of scikit-image", "photographs": credits, "boxes": boxes}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def is_made(output: Path) -> bool:
    """Raises UserError for a folder of something else."""
    if not output.is_dir() or not any(output.iterdir()):
        return False
    if not (output / "manifest.json").is_file():
        raise UserError(f"{str(output)!r} was not made by this script; give another --output, or move it away")
    return True


def make_dataset(output: Path) -> None:
    output = output.resolve()  # through a link, so that the rename stays on the target's disk
    if is_made(output):
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.making-", dir=output.parent) as workshop:
            make_folder(Path(workshop, "new"))
            os.rename(Path(workshop, "new"), output)
    except OSError as error:
        if not is_made(output):  # by another process meanwhile
            raise UserError(
                f"cannot make {str(output)!r}: {error}; give --output a folder that can be written"
            ) from None


def main(options: MakeDatasetOptions) -> int:
    make_dataset(options.output)
    print(f"{options.output} is ready: {len(PHOTOGRAPHS)} classes, {len(PHOTOGRAPHS) * sum(NUM_IMAGES.values())} JPEGs")
    return 0
