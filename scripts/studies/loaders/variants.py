"""The loaders that are timed side by side: this suite's with each decoder and with packed images, and torchvision's."""

import contextlib
import dataclasses
import io
import os
from collections.abc import Callable, Iterator, Sequence
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
from scripts.data.options import PackOptions
from scripts.studies.loaders.limit import PLAIN

Batches = Callable[[Config, int], Iterator[int]]
"""(configuration, number of cores) -> the sizes of the batches that the loader yields, without end."""

NUM_PACKED_IMAGES = 256  # that are packed to measure packed images, which then come from memory


def find_loaders(config: Config, temporary: Path, words: Sequence[str]) -> dict[str, Batches]:
    """All loaders that can run here and have one of `words` in their name. Prints why others are left out, and packs a
    sample of the images into `temporary`. Raises UserError where there is no such loader."""
    found: dict[str, Batches] = {PLAIN: torchvision_loader}
    for decoder, library in DECODERS.items():
        if problem := import_problem(decoder):
            print(f"left out: {decoder}: {problem}; pip install {library.package}")
        else:
            found[f"ours, {decoder}"] = own_loader(decoder=decoder, loader="folder")
    data = temporary / "sample"
    found |= {f"ours, packed {kind}": own_loader(loader="packed", pack=kind, data=str(data)) for kind in PACK_KINDS}
    chosen = {name: each for name, each in found.items() if not words or any(word in name for word in words)}
    if not chosen:
        raise UserError(f"no loader here has {' or '.join(words)} in its name; there are: {'; '.join(found)}")
    kinds = [kind for kind in PACK_KINDS if f"ours, packed {kind}" in chosen]
    if kinds:
        link_sample(config, data)
        os.environ.pop("PACKED", None)  # the user's own packs are of other images
    for kind in kinds:
        with contextlib.redirect_stdout(io.StringIO()):
            pack.main(PackOptions(str(data), kind))
    return chosen


def link_sample(config: Config, data: Path) -> None:
    """A data folder with links to NUM_PACKED_IMAGES images of train/, evenly spaced, and to one of them as val/."""
    images = list_images(Path(config.data) / "train")
    step = max(1, len(images) // NUM_PACKED_IMAGES)
    for part, numbers in (("train", range(0, len(images), step)), ("val", range(1))):
        (data / part / "images").mkdir(parents=True)
        for number in numbers:
            path = Path(images.path(number)).resolve()
            (data / part / "images" / f"{number}{path.suffix}").symlink_to(path)


def own_loader(**changes: Any) -> Batches:
    """The suite's loader. changes: configuration fields."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        config = dataclasses.replace(config, workers=num_workers(cores), **changes)
        train, _ = build_loaders(config, Rank())
        return batch_sizes(train.host_batches)

    return batches


def torchvision_loader(config: Config, cores: int) -> Iterator[int]:
    """torchvision's ImageFolder and transforms in torch's DataLoader."""
    transform = v2.Compose([v2.RandomResizedCrop(config.image_size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(Path(config.data) / "train", transform, loader=read_with_pillow)
    workers = num_workers(cores)
    return batch_sizes(
        DataLoader(images, config.global_batch, True, num_workers=workers, persistent_workers=workers > 0)
    )


def batch_sizes(batches: Any) -> Iterator[int]:
    """Sizes of the batches of one epoch after the other."""
    while True:
        for images, *_ in batches:
            yield len(images)


def read_with_pillow(path: str) -> Image.Image:
    """As torchvision's ImageFolder reads a file, but only JPEGs and PNGs: Pillow starts Ghostscript for an EPS."""
    return open_image(Path(path).read_bytes()).convert("RGB")


def num_workers(cores: int) -> int:
    return cores if cores > 1 else 0
