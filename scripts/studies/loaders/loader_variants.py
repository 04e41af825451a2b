"""The loaders that measure.py compares: each a function of (config, cores) that yields numbers of images."""

import dataclasses
import importlib.util
import os
import shutil
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.common.config.config import Config
from benchmarks.common.data.crops import random_crop, random_numbers, resize_into
from benchmarks.common.data.decode import DECODERS, import_problem, nvimgcodec_decoder, open_image
from benchmarks.common.data.image_dataset import packed_pixels_decoder
from benchmarks.common.data.listing import list_images
from benchmarks.common.data.loaders import build_loaders, open_datasets
from benchmarks.common.data.packed import PACK_KINDS
from benchmarks.common.dist.devices import RankContext
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import MAX_IMAGE_BYTES, read_regular_file
from scripts.setup import pack

PEERS = {
    "nvimgcodec": "nvidia-nvimgcodec-cu13",
    "torchcodec": "torchcodec",
    "nvidia.dali": "nvidia-dali-cuda130",
    "webdataset": "webdataset",
    "litdata": "litdata",
}
DRAWN = 2000  # crops that a bare loop has beforehand
MADE = 10  # times the images: ImageNet's 140 GB become 700, 350 and 31 GB, a tar, and LitData's chunks
SAMPLE = 200  # images whose sizes tell the size of all


@dataclasses.dataclass(frozen=True)
class Way:
    name: str
    batches: Callable[[Config, int], Iterator[int]]
    bare: tuple[str, ...] = ()
    """The loops that this one could be at best."""


def installed(config: Config, temporary: Path, words: list[str]) -> list[Way]:
    """All ways that can run here, their files made in `temporary`; says what the others lack.

    Raises UserError where these files would not fit.
    """
    missing = absent()
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    os.environ["PACKED"] = str(temporary)
    packs = {kind: dataclasses.replace(config, loader="packed", pack=kind) for kind in PACK_KINDS}
    ways = [Way("torchvision, Pillow", plain), Way("ours, Pillow", ours(decoder="pillow"))]
    if "torchcodec" not in missing:
        ways.append(Way("ours, torchcodec", ours(decoder="torchcodec")))
    if "nvimgcodec" not in missing:
        ways += [
            Way("ours, nvimgcodec", ours(decoder="nvimgcodec"), bare=("bare nvimgcodec loop",)),
            Way("bare nvimgcodec loop", in_processes(bare_crops)),
        ]
    bare = bare_pack(packs["full"])
    loops = [Way("bare packed full, threads", in_threads(bare)), Way("bare packed full, processes", in_processes(bare))]
    for kind in packs:
        best = loops if kind == "full" else []
        ways += [Way(f"ours, packed {kind}", ours(loader="packed", pack=kind), tuple(way.name for way in best)), *best]
    if "nvidia.dali" not in missing:
        ways.append(Way("DALI, CPU", dali))
    if "webdataset" not in missing:
        ways.append(Way("webdataset, Pillow", webdataset(temporary / "shard.tar")))
    if "litdata" not in missing:
        ways.append(Way("litdata, Pillow", litdata(temporary / "litdata")))
    ways = [way for way in ways if not words or any(word in way.name for word in words)]
    if any(word in way.name for way in ways for word in ("packed", "webdataset", "litdata")):
        refuse_without_room(config.data, temporary)
    for kind in packs:
        if any("packed" in way.name and kind in way.name for way in ways):
            pack.main(pack.Options(config.data, kind))
    if any("webdataset" in way.name for way in ways):
        write_tar(config, temporary / "shard.tar")
    if any("litdata" in way.name for way in ways):
        write_litdata(config, temporary / "litdata")
    return ways


def refuse_without_room(data: str, folder: Path) -> None:
    size, free = 0.0, shutil.disk_usage(folder).free
    for listing in (list_images(Path(data) / part) for part in ("train", "val")):
        some = range(0, len(listing), max(1, len(listing) // SAMPLE))
        size += len(listing) * sum(os.path.getsize(listing.path(index)) for index in some) / len(some)
    if MADE * size > free:
        raise UserError(
            f"all of {data} is packed and copied first, which takes about {MADE * size / 1e9:.3g} GB in "
            f"{folder.parent}, and {free / 1e9:.3g} GB are free; give DATA a folder of some thousand images, or none, "
            "or TMPDIR a larger disk"
        )


def absent() -> dict[str, str]:
    """Libraries that cannot take part, and why: those that fail to load need no installing."""
    why = {}
    for name, package in PEERS.items():
        if not findable(DECODERS[name].module if name in DECODERS else name):
            why[name] = f"not installed; pip install {package}"
        elif name in DECODERS and (problem := import_problem(name)):
            why[name] = problem
    return why


def findable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def transform(config: Config) -> v2.Compose:
    return v2.Compose([v2.RandomResizedCrop(config.image_size), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def repeated(make: Callable[[], object]) -> Iterator[int]:
    """Sizes of the batches of one epoch after the other."""
    batches = make()
    while True:
        for images, *_ in batches:
            yield len(images)


def by_pillow(path: str):
    """As torchvision's ImageFolder reads a file, but only JPEGs and PNGs: Pillow starts Ghostscript for an EPS."""
    return open_image(read_regular_file(path, MAX_IMAGE_BYTES)).convert("RGB")


def workers_of(cores: int) -> int:
    return cores if cores > 1 else 0


def plain(config: Config, cores: int) -> Iterator[int]:
    images = ImageFolder(Path(config.data) / "train", transform(config), loader=by_pillow)
    workers = workers_of(cores)
    return repeated(
        lambda: DataLoader(images, config.global_batch, True, num_workers=workers, persistent_workers=workers > 0)
    )


def ours(**changes) -> Callable[[Config, int], Iterator[int]]:
    def batches(config: Config, cores: int) -> Iterator[int]:
        config = dataclasses.replace(config, workers=workers_of(cores), **changes)
        train, _ = build_loaders(config, RankContext(torch.device("cpu")))
        return repeated(lambda: train.host_batches)

    return batches


# --- bare loops: no seeds, no draws, no batches -------------------------------------------------------------------


def drawn(images, config: Config) -> list:
    """(content, view) of images in random order, drawn beforehand; a folder's content is its path."""
    order = numpy.random.default_rng(0).permutation(DRAWN) % len(images)
    numbers = random_numbers(0, 0, 0, DRAWN)
    sizes: dict[int, tuple[int, int]] = {}
    found = []
    for index, of_image in zip(order.tolist(), numbers, strict=True):
        if index not in sizes:
            sizes[index] = size_of(images, index)
        found.append((index, random_crop(config.image_size, of_image)(*sizes[index])))
    return found


def size_of(images, index: int) -> tuple[int, int]:
    content = images.source.content(index)
    if not isinstance(content, bytes):
        return content.shape[:2]
    with open_image(content) as image:
        return image.height, image.width


def bare_loop(images, read, config: Config) -> Iterator[int]:
    crops, out = drawn(images, config), torch.empty(config.image_size, config.image_size, 3, dtype=torch.uint8)
    while True:
        for index, view in crops:
            box, *_ = read(images.source.content(index), lambda *_, view=view: view)
            resize_into(box, view, out)
            yield 1


def bare_crops(config: Config) -> Iterator[int]:
    return bare_loop(open_datasets(config)[0], nvimgcodec_decoder(), config)


def bare_pack(packs: Config) -> Callable[[Config], Iterator[int]]:
    return lambda config: bare_loop(
        open_datasets(dataclasses.replace(packs, image_size=config.image_size))[0], packed_pixels_decoder(), config
    )


def in_threads(loop: Callable[[Config], Iterator[int]]) -> Callable[[Config, int], Iterator[int]]:
    """As many loops as cores, each in a thread; yields how many images they made since it was asked last."""

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


def in_processes(loop: Callable[[Config], Iterator[int]]) -> Callable[[Config, int], Iterator[int]]:
    """The same with processes."""

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
    def pipeline():
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


def webdataset(path: Path) -> Callable[[Config, int], Iterator[int]]:
    def batches(config: Config, cores: int) -> Iterator[int]:
        import webdataset as wds

        change = transform(config)
        # one shard for each worker, as many shards would give
        shards = wds.WebDataset([str(path)] * max(1, cores), shardshuffle=False, nodesplitter=None).shuffle(256)
        # what decode("pilrgb") does, but of JPEGs and PNGs only
        images = shards.to_tuple("jpg", "cls").map_tuple(lambda jpeg: change(open_image(jpeg).convert("RGB")), int)
        images = images.batched(config.global_batch)
        return repeated(lambda: DataLoader(images, None, num_workers=workers_of(cores), persistent_workers=cores > 1))

    return batches


def as_stored(sample: tuple[str, int]) -> dict:
    return {"image": Path(sample[0]).read_bytes(), "target": sample[1]}


def write_litdata(config: Config, path: Path) -> None:
    import litdata

    samples = ImageFolder(Path(config.data) / "train").samples
    litdata.optimize(as_stored, samples, str(path), num_workers=1, chunk_bytes="64MB")


def litdata(path: Path) -> Callable[[Config, int], Iterator[int]]:
    def batches(config: Config, cores: int) -> Iterator[int]:
        from litdata import StreamingDataLoader, StreamingDataset

        change = transform(config)

        class Images(StreamingDataset):
            def __getitem__(self, index):
                sample = super().__getitem__(index)
                with open_image(sample["image"]) as image:
                    return change(image.convert("RGB")), sample["target"]

        images = Images(str(path), shuffle=True)
        return repeated(
            lambda: StreamingDataLoader(images, batch_size=config.global_batch, num_workers=workers_of(cores))
        )

    return batches
