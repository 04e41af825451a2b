"""Loaders that can be timed: this suite's, and those of other projects."""

import dataclasses
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.common.config.config import Config
from benchmarks.common.data.decode import open_image
from benchmarks.common.data.loaders import build_loaders
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.system.files import MAX_IMAGE_BYTES, read_regular_file

Batches = Callable[[Config, int], Iterator[int]]
"""(configuration, number of cores) -> the sizes of the batches that the loader yields, without end."""


def transform(config: Config) -> v2.Compose:
    return v2.Compose([v2.RandomResizedCrop(config.image_size), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def batch_sizes(make: Callable[[], Iterable[Any]]) -> Iterator[int]:
    """Sizes of the batches of one epoch after the other. make: the batches of an epoch, each of which begins with the
    images."""
    batches = make()
    while True:
        for images, *_ in batches:
            yield len(images)


def read_with_pillow(path: str) -> Image.Image:
    """As torchvision's ImageFolder reads a file, but only JPEGs and PNGs: Pillow starts Ghostscript for an EPS."""
    return open_image(read_regular_file(path, MAX_IMAGE_BYTES)).convert("RGB")


def num_workers_on(cores: int) -> int:
    return cores if cores > 1 else 0


def own_loader(**changes: Any) -> Batches:
    """The suite's loader. changes: configuration fields."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        config = dataclasses.replace(config, workers=num_workers_on(cores), **changes)
        train, _ = build_loaders(config, RankContext(torch.device("cpu")))
        return batch_sizes(lambda: train.host_batches)

    return batches


def torchvision_loader(config: Config, cores: int) -> Iterator[int]:
    images = ImageFolder(Path(config.data) / "train", transform(config), loader=read_with_pillow)
    workers = num_workers_on(cores)
    return batch_sizes(
        lambda: DataLoader(images, config.global_batch, True, num_workers=workers, persistent_workers=workers > 0)
    )


def dali(config: Config, cores: int) -> Iterator[int]:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=config.global_batch, num_threads=cores, device_id=None)
    def pipeline() -> Any:
        jpegs, labels = fn.readers.file(file_root=str(Path(config.data) / "train"), random_shuffle=True)
        images = fn.decoders.image_random_crop(jpegs, device="cpu", output_type=types.RGB)
        size = config.image_size
        images = fn.resize(images, resize_x=size, resize_y=size, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    built = pipeline()
    built.build()
    while True:
        yield len(built.run()[0])


def write_tar(config: Config, path: Path) -> None:
    images = ImageFolder(Path(config.data) / "train")
    with tarfile.open(path, "w") as tar:
        for number, (file, target) in enumerate(images.samples):
            tar.add(file, f"{number:08d}.jpg")
            label = path.with_name("label")
            label.write_text(str(target))
            tar.add(label, f"{number:08d}.cls")


def webdataset(path: Path) -> Batches:
    def batches(config: Config, cores: int) -> Iterator[int]:
        import webdataset as wds

        change = transform(config)
        # one shard for each worker, as many shards would give
        shards = wds.WebDataset([str(path)] * max(1, cores), shardshuffle=False, nodesplitter=None).shuffle(256)
        # what decode("pilrgb") does, but of JPEGs and PNGs only
        images = shards.to_tuple("jpg", "cls").map_tuple(lambda jpeg: change(open_image(jpeg).convert("RGB")), int)
        images = images.batched(config.global_batch)
        workers = num_workers_on(cores)
        return batch_sizes(lambda: DataLoader(images, None, num_workers=workers, persistent_workers=workers > 0))

    return batches


def litdata_sample(sample: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(sample[0]).read_bytes(), "target": sample[1]}


def write_litdata(config: Config, path: Path) -> None:
    import litdata

    # optimize() removes both folders first. They would be TMPDIR/chunks and TMPDIR/data, which may be the user's.
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = f"{path}-chunks"
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = f"{path}-data"
    samples = ImageFolder(Path(config.data) / "train").samples
    litdata.optimize(litdata_sample, samples, str(path), num_workers=1, chunk_bytes="64MB")


def litdata(path: Path) -> Batches:
    def batches(config: Config, cores: int) -> Iterator[int]:
        from litdata import StreamingDataLoader, StreamingDataset

        change = transform(config)

        class Images(StreamingDataset):
            def __getitem__(self, index: Any) -> tuple[Any, Any]:
                sample = super().__getitem__(index)
                with open_image(sample["image"]) as image:
                    return change(image.convert("RGB")), sample["target"]

        images = Images(str(path), shuffle=True)
        return batch_sizes(
            lambda: StreamingDataLoader(images, batch_size=config.global_batch, num_workers=num_workers_on(cores))
        )

    return batches
