"""The loaders that measure.py compares, which of them can run here, and their files."""

import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.common.config import PACK_KINDS, Config
from benchmarks.common.errors import UserError
from benchmarks.common.images import DECODERS, import_problem, open_image
from benchmarks.common.listing import list_images
from benchmarks.common.loader import build_loaders
from benchmarks.common.rank import Rank
from scripts.data import pack
from scripts.options.data_options import PackOptions

Batches = Callable[[Config, int], Iterator[int]]
"""(configuration, number of cores) -> the sizes of the batches that the loader yields, without end."""

PACKAGES = {"nvimgcodec": "nvidia-nvimgcodec-cu13", "torchcodec": "torchcodec"}
DISK_FACTOR = 8  # times the images: ImageNet's 140 GB become packs of 700, 350 and 31 GB
NUM_SIZED_IMAGES = 200  # whose file sizes stand for those of all images


def own_loader(**changes: Any) -> Batches:
    """The suite's loader. changes: configuration fields."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        config = dataclasses.replace(config, workers=_num_workers(cores), **changes)
        train, _ = build_loaders(config, Rank())
        return _batch_sizes(train.host_batches)

    return batches


def torchvision_loader(config: Config, cores: int) -> Iterator[int]:
    """torchvision's ImageFolder and transforms in torch's DataLoader."""
    transform = v2.Compose([v2.RandomResizedCrop(config.image_size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(Path(config.data) / "train", transform, loader=_read_with_pillow)
    workers = _num_workers(cores)
    return _batch_sizes(
        DataLoader(images, config.global_batch, True, num_workers=workers, persistent_workers=workers > 0)
    )


def _batch_sizes(batches: Any) -> Iterator[int]:
    """Sizes of the batches of one epoch after the other."""
    while True:
        for images, *_ in batches:
            yield len(images)


def _read_with_pillow(path: str) -> Image.Image:
    """As torchvision's ImageFolder reads a file, but only JPEGs and PNGs: Pillow starts Ghostscript for an EPS."""
    return open_image(Path(path).read_bytes()).convert("RGB")


def _num_workers(cores: int) -> int:
    return cores if cores > 1 else 0


def prepare_variants(config: Config, temporary: Path, words: list[str]) -> dict[str, Batches]:
    """All loaders that can run here and have one of `words` in their name, with their files written to `temporary`.
    Prints why others are left out.

    Raises UserError where these files would not fit, and where there is no such loader.
    """
    missing = missing_libraries()
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    os.environ["PACKED"] = str(temporary)
    all_here = all_variants(missing)
    variants = {name: each for name, each in all_here.items() if not words or any(word in name for word in words)}
    if not variants:
        raise UserError(f"no loader here has {' or '.join(words)} in its name; there are: {'; '.join(all_here)}")
    kinds = [kind for kind in PACK_KINDS if f"ours, packed {kind}" in variants]
    if kinds:
        check_disk_space(config.data, temporary)
    for kind in kinds:
        pack.main(PackOptions(config.data, kind))
    return variants


def all_variants(missing: Collection[str]) -> dict[str, Batches]:
    """The loaders whose libraries are not `missing`, by name."""
    decoders = {"Pillow": "pillow", "torchcodec": "torchcodec", "nvimgcodec": "nvimgcodec"}
    variants: dict[str, Batches] = {"torchvision, Pillow": torchvision_loader}
    for name, decoder in decoders.items():
        if decoder not in missing:
            variants[f"ours, {name}"] = own_loader(decoder=decoder)
    return variants | {f"ours, packed {kind}": own_loader(loader="packed", pack=kind) for kind in PACK_KINDS}


def check_disk_space(data: str, folder: Path) -> None:
    """Raises UserError where packed images would not fit into `folder`."""
    size, free = 0.0, shutil.disk_usage(folder).free
    for listing in (list_images(Path(data) / part) for part in ("train", "val")):
        some = range(0, len(listing), max(1, len(listing) // NUM_SIZED_IMAGES))
        size += len(listing) * sum(os.path.getsize(listing.path(index)) for index in some) / len(some)
    if DISK_FACTOR * size > free:
        folder_of_some = "give --data a folder of some thousand images, or none"
        raise UserError(
            f"all of {data} is packed first, which takes about {DISK_FACTOR * size / 1e9:.3g} GB in "
            f"{folder.parent}, and {free / 1e9:.3g} GB are free; {folder_of_some}, or TMPDIR a larger disk"
        )


def missing_libraries() -> dict[str, str]:
    """Decoders that cannot take part, and why: they are not installed, or they do not load."""
    why = {}
    for name, package in PACKAGES.items():
        if not is_importable(DECODERS[name].module):
            why[name] = f"not installed; pip install {package}"
        elif problem := import_problem(name):
            why[name] = problem
    return why


def is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
