"""The loaders that measure.py compares: this suite's, bare loops, and those of other projects."""

import dataclasses
import importlib.util
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.common.config.config import PACK_KINDS, Config
from benchmarks.common.data.crops import ChooseCrop, Crop, random_crop, random_numbers, resize_into
from benchmarks.common.data.decode import DECODERS, Decoder, import_problem, nvimgcodec_decoder, open_image
from benchmarks.common.data.image_dataset import ImageDataset, packed_pixels_decoder
from benchmarks.common.data.listing import list_images
from benchmarks.common.data.loaders import build_loaders, open_datasets
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import MAX_IMAGE_BYTES, read_regular_file
from benchmarks.common.system.options_as_typed import option_as_typed
from scripts.options.data_options import PackOptions
from scripts.setup import pack

PEERS = {
    "nvimgcodec": "nvidia-nvimgcodec-cu13",
    "torchcodec": "torchcodec",
    "nvidia.dali": "nvidia-dali-cuda130",
    "webdataset": "webdataset",
    "litdata": "litdata",
}
NUM_DRAWN_CROPS = 2000  # that a bare loop draws before it starts
DISK_FACTOR = 10  # times the images: ImageNet's 140 GB become 700, 350 and 31 GB, a tar, and LitData's chunks
NUM_SIZED_IMAGES = 200  # whose file sizes stand for those of all images

Batches = Callable[[Config, int], Iterator[int]]
"""(configuration, number of cores) -> the sizes of the batches that the loader yields, without end."""
BareLoop = Callable[[Config], Iterator[int]]
"""The same on one core."""


@dataclasses.dataclass(frozen=True)
class LoaderVariant:
    """A loader that is timed."""

    name: str
    batches: Batches
    bare: tuple[str, ...] = ()
    """The bare loops that this loader could at best be as fast as."""


def prepare_variants(config: Config, temporary: Path, words: list[str]) -> list[LoaderVariant]:
    """All variants that can run here and have one of `words` in their name, with their files written to `temporary`.
    Prints why others are left out.

    Raises UserError where these files would not fit.
    """
    missing = missing_libraries()
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    os.environ["PACKED"] = str(temporary)
    variants = [
        variant
        for variant in all_variants(config, temporary, missing)
        if not words or any(word in variant.name for word in words)
    ]
    if any(word in variant.name for variant in variants for word in ("packed", "webdataset", "litdata")):
        check_disk_space(config.data, temporary)
    for kind in PACK_KINDS:
        if any("packed" in variant.name and kind in variant.name for variant in variants):
            pack.main(PackOptions(config.data, kind))
    if any("webdataset" in variant.name for variant in variants):
        write_tar(config, temporary / "shard.tar")
    if any("litdata" in variant.name for variant in variants):
        write_litdata(config, temporary / "litdata")
    return variants


def all_variants(config: Config, temporary: Path, missing: Collection[str]) -> list[LoaderVariant]:
    """The variants whose libraries are not `missing`."""
    variants = [
        LoaderVariant("torchvision, Pillow", torchvision_loader),
        LoaderVariant("ours, Pillow", own_loader(decoder="pillow")),
    ]
    if "torchcodec" not in missing:
        variants.append(LoaderVariant("ours, torchcodec", own_loader(decoder="torchcodec")))
    if "nvimgcodec" not in missing:
        bare_name = "bare nvimgcodec loop"
        variants.append(LoaderVariant("ours, nvimgcodec", own_loader(decoder="nvimgcodec"), bare=(bare_name,)))
        variants.append(LoaderVariant(bare_name, run_in_processes(bare_nvimgcodec_loop)))
    bare_packed = bare_packed_loop(dataclasses.replace(config, loader="packed", pack="full"))
    bare_variants = [
        LoaderVariant("bare packed full, threads", run_in_threads(bare_packed)),
        LoaderVariant("bare packed full, processes", run_in_processes(bare_packed)),
    ]
    for kind in PACK_KINDS:
        bare = bare_variants if kind == "full" else []
        names = tuple(variant.name for variant in bare)
        variants += [LoaderVariant(f"ours, packed {kind}", own_loader(loader="packed", pack=kind), names), *bare]
    if "nvidia.dali" not in missing:
        variants.append(LoaderVariant("DALI, CPU", dali))
    if "webdataset" not in missing:
        variants.append(LoaderVariant("webdataset, Pillow", webdataset(temporary / "shard.tar")))
    if "litdata" not in missing:
        variants.append(LoaderVariant("litdata, Pillow", litdata(temporary / "litdata")))
    return variants


def check_disk_space(data: str, folder: Path) -> None:
    """Raises UserError where packed and copied images would not fit into `folder`."""
    size, free = 0.0, shutil.disk_usage(folder).free
    for listing in (list_images(Path(data) / part) for part in ("train", "val")):
        some = range(0, len(listing), max(1, len(listing) // NUM_SIZED_IMAGES))
        size += len(listing) * sum(os.path.getsize(listing.path(index)) for index in some) / len(some)
    if DISK_FACTOR * size > free:
        folder_of_some = f"give {option_as_typed('DATA')} a folder of some thousand images, or none"
        raise UserError(
            f"all of {data} is packed and copied first, which takes about {DISK_FACTOR * size / 1e9:.3g} GB in "
            f"{folder.parent}, and {free / 1e9:.3g} GB are free; {folder_of_some}, or TMPDIR a larger disk"
        )


def missing_libraries() -> dict[str, str]:
    """Libraries that cannot take part, and why: they are not installed, or they do not load."""
    why = {}
    for name, package in PEERS.items():
        if not is_importable(DECODERS[name].module if name in DECODERS else name):
            why[name] = f"not installed; pip install {package}"
        elif name in DECODERS and (problem := import_problem(name)):
            why[name] = problem
    return why


def is_importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


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


def torchvision_loader(config: Config, cores: int) -> Iterator[int]:
    images = ImageFolder(Path(config.data) / "train", transform(config), loader=read_with_pillow)
    workers = num_workers_on(cores)
    return batch_sizes(
        lambda: DataLoader(images, config.global_batch, True, num_workers=workers, persistent_workers=workers > 0)
    )


def own_loader(**changes: Any) -> Batches:
    """The suite's loader. changes: configuration fields."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        config = dataclasses.replace(config, workers=num_workers_on(cores), **changes)
        train, _ = build_loaders(config, RankContext(torch.device("cpu")))
        return batch_sizes(lambda: train.host_batches)

    return batches


# --- bare loops: no seeds, no random numbers, no batches ----------------------------------------------------------


def draw_crops(images: ImageDataset, config: Config) -> list[tuple[int, Crop]]:
    """(index, crop) of images in random order, NUM_DRAWN_CROPS of them."""
    order = numpy.random.default_rng(0).permutation(NUM_DRAWN_CROPS) % len(images)
    numbers = random_numbers(0, 0, 0, NUM_DRAWN_CROPS)
    sizes: dict[int, tuple[int, int]] = {}
    found = []
    for index, of_image in zip(order.tolist(), numbers, strict=True):
        if index not in sizes:
            sizes[index] = size_of(images, index)
        found.append((index, random_crop(config.image_size, of_image)(*sizes[index])))
    return found


def size_of(images: ImageDataset, index: int) -> tuple[int, int]:
    """(height, width) of an image."""
    content = images.source.content(index)
    if not isinstance(content, bytes):
        return content.shape[0], content.shape[1]
    with open_image(content) as image:
        return image.height, image.width


def bare_loop(images: ImageDataset, decode: Decoder, config: Config) -> Iterator[int]:
    crops, out = draw_crops(images, config), torch.empty(config.image_size, config.image_size, 3, dtype=torch.uint8)
    while True:
        for index, crop in crops:
            box, *_ = decode(images.source.content(index), always(crop))
            resize_into(box, crop, out)
            yield 1


def always(crop: Crop) -> ChooseCrop:
    """Chooses this crop, whatever the size of the image."""
    return lambda height, width: crop


def bare_nvimgcodec_loop(config: Config) -> Iterator[int]:
    return bare_loop(open_datasets(config)[0], nvimgcodec_decoder(), config)


def bare_packed_loop(packed: Config) -> BareLoop:
    return lambda config: bare_loop(
        open_datasets(dataclasses.replace(packed, image_size=config.image_size))[0], packed_pixels_decoder(), config
    )


def run_in_threads(loop: BareLoop) -> Batches:
    """As many loops as cores, each in a thread; yields how many images all have made since the last item."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        if cores == 1:
            yield from loop(config)
        counts, stop = [0] * cores, threading.Event()

        def work(number: int, numbers: Iterator[int]) -> None:
            while not stop.is_set():
                counts[number] += next(numbers)

        threads = [threading.Thread(target=work, args=(n, loop(config)), daemon=True) for n in range(cores)]
        for thread in threads:
            thread.start()
        seen = 0
        try:
            while True:
                time.sleep(0.01)
                now = sum(counts)
                yield now - seen
                seen = now
        finally:
            stop.set()

    return batches


def run_in_processes(loop: BareLoop) -> Batches:
    """As many loops as cores, each in a process; yields how many images all have made since the last item."""

    def batches(config: Config, cores: int) -> Iterator[int]:
        counts = torch.zeros(cores, dtype=torch.int64).share_memory_()
        parent, children = os.getpid(), []
        for number in range(cores):
            if not (child := os.fork()):
                for images in loop(config):
                    counts[number] += images
                    if os.getppid() != parent:
                        os._exit(0)
            children.append(child)
        seen = 0
        try:
            while True:
                time.sleep(0.01)
                now = int(counts.sum())
                yield now - seen
                seen = now
        finally:
            for child in children:
                os.kill(child, 9)
                os.waitpid(child, 0)

    return batches


# --- other projects' loaders --------------------------------------------------------------------------------------


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
