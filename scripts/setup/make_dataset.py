"""Make imagenet-mini: a small folder of JPEGs in ImageNet's layout, cut from scikit-image's photographs.

    python -m scripts.setup.make_dataset [--output data/imagenet-mini] [--seed 0] [--verify] [--force]

Each photograph is one class. A straight line cuts it in two: train crops come from one side, val crops from
the other, so that no source pixel is in both. Every file depends on the seed and on its own name only.
manifest.json records how each file was cut, its size and its sha256. A second call checks the folder against
it (the sizes; with --verify also the hashes) and does no more.
Exit codes: 0 ready, 1 could not write, 2 bad input.
"""

import contextlib
import hashlib
import importlib.util
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import tyro
from PIL import Image
from tqdm import tqdm

from benchmarks.common.system.options_as_typed import option_as_typed
from scripts.options.data_options import MakeDatasetOptions

MADE_BY = "scripts.setup.make_dataset"
PACKED = "packed"  # the folder of ./bench data pack, which can write its files again
RECIPE = 1  # raise it whenever the same seed would give other files
STALE_S = 3600  # making takes seconds, so a workshop this old is a killed run's

# The usual sizes (width, height) of ImageNet's files, and the share of each here.
SIZES_PX = [(500, 375), (500, 333), (375, 500), (333, 500)]
SIZE_SHARES = [0.5, 0.2, 0.2, 0.1]
# Enlarged crops are smoother than a camera's file. This grain and quality bring the mean size near ImageNet's
# 110 KB, so that reading and decoding cost what they cost there. Training's sizes average the grain out.
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


def settings(options: MakeDatasetOptions) -> dict[str, int]:
    """What decides the content of the folder."""
    return {
        "recipe": RECIPE,
        "seed": options.seed,
        "num_train_per_class": options.num_train_per_class,
        "num_val_per_class": options.num_val_per_class,
    }


def photograph_folder() -> Path:
    """scikit-image's data folder, found without importing it, which takes longer than a whole check.

    Raises ValueError where scikit-image is not installed or lacks one of the photographs.
    """
    spec = importlib.util.find_spec("skimage")
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(
            "scikit-image, whose photographs this cuts, is not installed: "
            f"run ./bench setup, or set {option_as_typed('DATA')} to a folder of your own"
        )
    folder = Path(spec.submodule_search_locations[0], "data")
    for photograph in PHOTOGRAPHS.values():
        if not (folder / photograph.file).is_file():
            raise ValueError(
                f"scikit-image {version('scikit-image')} does not ship {photograph.file}: "
                f"install version 0.26, or set {option_as_typed('DATA')} to a folder of your own"
            )
    return folder


def split(width: int, height: int, photograph: Photograph) -> dict[str, Box]:
    """The two regions of a photograph of width x height pixels; they share no pixel."""
    if photograph.cut == "x":
        line = round(width * photograph.at)
        return {"train": (0, 0, line, height), "val": (line, 0, width, height)}
    line = round(height * photograph.at)
    return {"train": (0, 0, width, line), "val": (0, line, width, height)}


def make_image(photograph: Image.Image, region: Box, rng: np.random.Generator) -> tuple[bytes, Box]:
    """One JPEG cut at random from `region` of an RGB photograph, and the box of source pixels that it shows.

    The box has the shape of one of SIZES_PX and 0.5 to 1 times the width of the widest that fits.
    Brightness and contrast vary by 10 %.
    """
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


def make_folder(folder: Path, options: MakeDatasetOptions) -> None:
    """Write train/, val/ and manifest.json into `folder`, which must not exist."""
    source = photograph_folder()
    num_images = {"train": options.num_train_per_class, "val": options.num_val_per_class}
    files, photographs = {}, {}
    total = len(PHOTOGRAPHS) * sum(num_images.values())
    with tqdm(total=total, desc="imagenet-mini", unit="image", disable=None) as bar:
        for name, photograph in PHOTOGRAPHS.items():
            original = (source / photograph.file).read_bytes()
            image = Image.open(io.BytesIO(original), formats=("JPEG", "PNG")).convert("RGB")
            regions = split(*image.size, photograph)
            photographs[name] = {
                "file": photograph.file,
                "credit": photograph.credit,
                "size_px": image.size,
                "sha256": hashlib.sha256(original).hexdigest(),
                "regions": regions,
            }
            for part, region in regions.items():
                (folder / part / name).mkdir(parents=True)
                for index in range(num_images[part]):
                    file = f"{part}/{name}/{name}_{index:04d}.JPEG"
                    rng = np.random.default_rng([options.seed, *file.encode()])
                    jpeg, box = make_image(image, region, rng)
                    (folder / file).write_bytes(jpeg)
                    files[file] = {"bytes": len(jpeg), "sha256": hashlib.sha256(jpeg).hexdigest(), "box": box}
                    bar.update()
    manifest = {
        "made_by": MADE_BY,
        "settings": settings(options),
        "source": "Crops of the photographs in scikit-image's skimage/data, credited as it documents them.",
        "versions": {package: version(package) for package in ("scikit-image", "pillow", "numpy")},
        "photographs": photographs,
        "files": files,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def read_dataset_manifest(output: Path) -> dict | None:
    """A folder's manifest; {} where it is ours but broken; None where there is no folder or an empty one.

    Raises ValueError for whatever this script did not make: that is never touched.
    """
    text = ""
    for _ in range(2):  # a second look, as another process may have been renaming the folder at the first
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not output.exists() or (output.is_dir() and not any(output.iterdir())):
                return None
            text = (output / "manifest.json").read_text(errors="replace")
            break
    if f'"made_by": "{MADE_BY}"' not in text:
        raise ValueError(
            f"{str(output)!r} was not made by this script (its manifest.json is not there), so "
            "it is left alone: give another --output, or move it away"
        )
    with contextlib.suppress(json.JSONDecodeError):
        manifest = json.loads(text)
        if manifest.keys() >= {"settings", "files"}:
            return manifest
    return {}


def find_damage(output: Path, manifest: dict, hashes: bool) -> str | None:
    """What is wrong with the listed files (the first that is missing or changed), or None."""
    if not manifest:
        return "its manifest.json is broken"
    for name, record in manifest["files"].items():
        try:
            if (output / name).stat().st_size != record["bytes"]:
                return f"{name} has another size"
            if hashes and hashlib.sha256((output / name).read_bytes()).hexdigest() != record["sha256"]:
                return f"{name} has another content"
        except OSError as error:
            return f"{name}: {error.strerror}"
    return None


def unlisted_files(output: Path, manifest: dict) -> Iterator[str]:
    """Files that the manifest does not name, but for what ./bench data pack writes beside train/ and val/, and dot
    files, such as a file browser leaves behind."""
    for folder, folders, names in os.walk(output):
        if Path(folder) == output and PACKED in folders:
            folders.remove(PACKED)
        for name in names:
            path = Path(folder, name).relative_to(output).as_posix()
            if path not in manifest["files"] and path != "manifest.json" and not name.startswith("."):
                yield path


def is_ready(output: Path, options: MakeDatasetOptions) -> bool:
    """True where `output` is complete, False where it has to be made; says so where it is damaged.

    Raises ValueError where making it would destroy what the caller may want to keep.
    """
    manifest = read_dataset_manifest(output)
    if manifest is None or options.force:
        return False
    if manifest and manifest["settings"] != settings(options):
        raise ValueError(
            f"{str(output)!r} was made with {manifest['settings']}, not {settings(options)}: "
            "give another --output, or --force to make it again"
        )
    if manifest and (unlisted := next(unlisted_files(output, manifest), None)):
        raise ValueError(
            f"{str(output)!r} holds {unlisted!r}, which this script did not make: move it away, "
            "or give --force to make the folder again without it"
        )
    damage = find_damage(output, manifest, options.verify)
    if damage:
        print(f"{output} is damaged ({damage}): making it again", file=sys.stderr)
    return damage is None


def make_dataset(options: MakeDatasetOptions) -> dict:
    """Make the folder unless it is there and complete, and return its manifest.

    It is made beside its place and renamed when complete, so that no reader ever sees half of it.
    Raises ValueError for bad options or a folder that must not be replaced, OSError where it cannot write.
    """
    if options.seed < 0 or options.num_train_per_class < 1 or options.num_val_per_class < 1:
        raise ValueError("--seed must be 0 or more, --num-train-per-class and --num-val-per-class 1 or more")
    output = options.output.resolve()  # through a link, so that the rename stays on the target's disk
    if not is_ready(output, options):
        output.parent.mkdir(parents=True, exist_ok=True)
        prefix = f".{output.name}.making-"
        for path in output.parent.iterdir():
            if path.name.startswith(prefix) and time.time() - path.lstat().st_mtime > STALE_S:
                print(f"removing {path}, left half-made by a killed run", file=sys.stderr)
                shutil.rmtree(path, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=output.parent) as workshop:
            new = Path(workshop, "new")
            make_folder(new, options)
            install(new, output, options, aside=Path(workshop, "old"))
    return read_dataset_manifest(output) or {}


def install(new: Path, output: Path, options: MakeDatasetOptions, aside: Path) -> None:
    """Rename `new` to `output`, and what was there to `aside`, unless another process put a good one."""
    manifest = read_dataset_manifest(output)
    if manifest and not options.force and find_damage(output, manifest, options.verify) is None:
        return
    with contextlib.suppress(FileNotFoundError):
        os.rename(output, aside)
    try:
        os.rename(new, output)
    except OSError:
        if not output.exists():  # else the other process was first by a moment
            raise


def main(options: MakeDatasetOptions) -> int:
    try:
        manifest = make_dataset(options)
    except ValueError as error:
        print(f"make_dataset: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(
            f"make_dataset: cannot make {str(options.output)!r}: {error}; free the disk, or give --output "
            "a folder that you can write to",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("make_dataset: stopped; nothing half-made is left", file=sys.stderr)
        return 130
    num_bytes = sum(record["bytes"] for record in manifest["files"].values())
    print(
        f"{options.output} is ready: {len(PHOTOGRAPHS)} classes, {len(manifest['files'])} JPEGs, "
        f"{num_bytes / 1e6:.1f} MB"
    )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exception, so that the workshop is removed
    sys.exit(
        main(
            tyro.cli(
                Annotated[MakeDatasetOptions, tyro.conf.FlagCreatePairsOff],
                description=__doc__,
                prog="python -m scripts.setup.make_dataset",
            )
        )
    )
