"""The loaders that measure.py compares: which of them can run here, and their files."""

import dataclasses
import importlib.util
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from benchmarks.common.config.config import PACK_KINDS, Config
from benchmarks.common.data.decode import DECODERS, import_problem
from benchmarks.common.data.listing import list_images
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.options_as_typed import option_as_typed
from scripts.options.data_options import PackOptions
from scripts.setup import pack
from scripts.studies.loaders.bare_loops import bare_nvimgcodec_loop, bare_packed_loop, run_in_processes, run_in_threads
from scripts.studies.loaders.timed_loaders import (
    Batches,
    dali,
    litdata,
    own_loader,
    torchvision_loader,
    webdataset,
    write_litdata,
    write_tar,
)

PEERS = {
    "nvimgcodec": "nvidia-nvimgcodec-cu13",
    "torchcodec": "torchcodec",
    "nvidia.dali": "nvidia-dali-cuda130",
    "webdataset": "webdataset",
    "litdata": "litdata",
}
DISK_FACTOR = 10  # times the images: ImageNet's 140 GB become 700, 350 and 31 GB, a tar, and LitData's chunks
NUM_SIZED_IMAGES = 200  # whose file sizes stand for those of all images


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

    Raises UserError where these files would not fit, and where there is no such variant.
    """
    missing = missing_libraries()
    for name, why in missing.items():
        print(f"left out: {name}: {why}")
    os.environ["PACKED"] = str(temporary)
    all_here = all_variants(config, temporary, missing)
    variants = [each for each in all_here if not words or any(word in each.name for word in words)]
    if not variants:
        names = "; ".join(each.name for each in all_here)
        raise UserError(f"no loader here has {' or '.join(words)} in its name; there are: {names}")
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
