"""Pack a folder's images into one file for train/ and one for val/, which training maps instead of decoding JPEGs.

    python -m scripts.data.pack --data data/imagenet-mini --pack full

full holds every pixel (ImageNet: about 700 GB); 256 the images shrunk to 256 pixels on the shorter side (350 GB);
jpeg256 those as JPEGs of quality 90 (31 GB). Only full trains on the same pixels as the folder. Started again after
it was stopped or killed, it goes on; a packed file that is whole already is checked and kept.
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy
import tyro
from tqdm import tqdm

from benchmarks.common.config import Config
from benchmarks.common.errors import UserError
from benchmarks.common.files import hold_lock, replace_atomically
from benchmarks.common.listing import Arrays, DamagedFile, ImageListing, fingerprint, list_images
from benchmarks.common.packed import PackedSource, pack_path
from scripts.data import chunks
from scripts.data.check import check_image_folder
from scripts.data.pack_file import check_pack, header_size, pack_metadata, write_tables
from scripts.options.data_options import PackOptions
from scripts.shared.options_as_typed import option_as_typed
from scripts.shared.programs import run_main_and_exit

NUM_SAMPLED_IMAGES = 200  # images whose sizes tell the size of all


def main(options: PackOptions) -> None:
    config, root = Config(data=options.data, loader="packed", pack=options.pack), Path(options.data)
    try:
        check_image_folder(root)
        listings = {split: list_images(root / split) for split in ("train", "val")}
        of_images = fingerprint(root)
    except OSError as error:
        raise UserError(f"cannot read {root}: {error}; {option_as_typed('DATA')} must hold train/ and val/") from None
    todo = {split: one for split, one in listings.items() if not is_complete(pack_path(config, split), of_images)}
    sizes = {split: estimate_bytes(config, split, listing) for split, listing in todo.items()}
    if todo:
        check_folder(pack_path(config, "train").parent, sum(sizes.values()))
    for split, listing in todo.items():
        with lock_pack(pack_path(config, split)):
            write_pack(pack_path(config, split), listing, config.pack, of_images)


def is_complete(path: Path, of_images: str) -> bool:
    """Whether a packed file of the images with this fingerprint is there; all of it is read.

    Raises UserError for one of other images in the folder that PACKED names, where it may be another data set's.
    """
    if not path.exists():
        return False
    try:
        pack = PackedSource(path)
        if (pack.metadata.get("fingerprint"), pack.metadata.get("part")) != (of_images, path.stem):
            if os.environ.get("PACKED"):
                raise UserError(f"{path} is of other images; give another folder by PACKED, or remove it")
            raise DamagedFile("it is of other images")
        check_pack(pack)
    except (OSError, DamagedFile) as error:
        print(f"{path} is written anew: {error}")
        return False
    print(f"{path} is whole: {len(pack)} images")
    return True


def estimate_bytes(config: Config, split: str, listing: ImageListing) -> int:
    """Bytes that packing will write, from a sample; prints them. What a stopped run has written is not counted."""
    some = range(0, len(listing), max(1, len(listing) // NUM_SAMPLED_IMAGES))
    with ThreadPoolExecutor() as pool:
        stored = pool.map(lambda index: len(chunks.encode_image(listing.path(index), config.pack)[0]), some)
        mean = sum(tqdm(stored, f"sizing {split}", len(some), delay=2, disable=None, leave=False)) / len(some)
    size, there = int(mean * len(listing)), pack_path(config, split).with_suffix(".part")
    print(f"{split}: {len(listing)} images, about {size / 1e9:.3g} GB as {config.pack}")
    return max(0, size - (there.stat().st_size if there.exists() else 0))


def check_folder(folder: Path, size: int) -> None:
    """Make the folder. Raises UserError where it cannot be written, or its disk has less than `size` bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; give another folder by PACKED") from None
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UserError(
            f"packing needs about {size / 1e9:.1f} GB in {folder}, and {free / 1e9:.1f} GB are free; "
            "free space, give another folder by PACKED, or use PACK=256 or jpeg256"
        )


@contextlib.contextmanager
def lock_pack(path: Path) -> Iterator[None]:
    """Raises UserError where another process packs the same, or the folder cannot be written."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(hold_lock(path.with_suffix(".lock"), limit_s=0))
        except TimeoutError:
            raise UserError(f"another process is writing {path}; wait for it") from None
        except OSError as error:
            raise UserError(f"cannot write to {path.parent}: {error.strerror}; give another folder by PACKED") from None
        yield


def write_pack(path: Path, listing: ImageListing, kind: str, of_images: str) -> None:
    """Write chunk after chunk to <name>.part, each noted in <name>.journal, then the tables and the header.

    Raises UserError for what cannot be read or written.
    """
    part, journal = path.with_suffix(".part"), path.with_suffix(".journal")
    metadata = pack_metadata(kind, path.stem, listing.classes, of_images)
    header_bytes = header_size(metadata)
    plan = json.dumps([metadata, header_bytes])
    done, size = read_journal(journal, plan), part.stat().st_size if part.exists() else 0
    if size < (written := header_bytes + sum(sum(chunk.sizes) for chunk in done)):
        done, written = [], header_bytes  # fewer bytes than the journal lists: some were lost
    num_done = sum(len(chunk.sizes) for chunk in done)
    if done:
        print(f"going on after {num_done} images")
    try:
        lines = "\n".join([plan, *map(journal_line, done)]) + "\n"  # without a note that was cut off
        replace_atomically(journal, lambda file: file.write(lines.encode()))
        with open(part, "r+b" if done else "wb") as file, open(journal, "a") as notes:
            file.truncate(written)
            file.seek(0, os.SEEK_END)
            done += write_chunks(file, notes, chunks.encode_chunks(listing, kind, num_done))
            write_tables(file, metadata, make_tables(listing, done), header_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise UserError(
                f"cannot pack {error.filename or path}: {error.strerror}; run ./bench data pack again"
            ) from None
        raise UserError(f"the disk of {path.parent} is full; free space, and ./bench data pack goes on") from None
    check_written(part, journal)
    os.replace(part, path)
    journal.unlink()
    bad = [index for index, size in enumerate(size for chunk in done for size in chunk.sizes) if not size]
    for index in bad[:3]:
        print(f"warning: {listing.path(index)!r} is not a readable image; a run that meets it says so")
    print(f"{path}: {len(listing)} images, {path.stat().st_size / 1e9:.3g} GB, {len(bad)} of them not readable")


def write_chunks(file: BinaryIO, notes: TextIO, made: Iterable[chunks.Chunk]) -> list[chunks.Chunk]:
    """Write each chunk while the next is made; returns them."""

    def write(chunk: chunks.Chunk) -> chunks.Chunk:
        file.writelines(chunk.stored)
        file.flush()  # first the bytes, then the note that they are there
        chunk.stored = []
        notes.write(journal_line(chunk) + "\n")
        notes.flush()
        return chunk

    with ThreadPoolExecutor(1) as writer:
        return [*chunks.map_in_order(writer, write, made, 1)]


def check_written(part: Path, journal: Path) -> None:
    """Read the finished file back, also what an earlier run wrote of it. Raises UserError, and drops the journal."""
    try:
        check_pack(PackedSource(part))
    except (OSError, DamagedFile) as error:
        journal.unlink()
        raise UserError(
            f"{part} is not as it was written: {error}; is its disk sound? run ./bench data pack again"
        ) from None


def journal_line(chunk: chunks.Chunk) -> str:
    return json.dumps([chunk.sizes, chunk.shapes, chunk.checksums])


def read_journal(journal: Path, plan: str) -> list[chunks.Chunk]:
    """What a stopped run of the same plan has written, without its bytes; nothing of another plan."""
    found: list[chunks.Chunk] = []
    with contextlib.suppress(OSError, ValueError):
        first, *lines = journal.read_text().split("\n")
        if first == plan:
            # a note without its line end was cut off, even where it still reads as JSON
            found.extend(chunks.Chunk(*json.loads(line)) for line in lines[:-1])
    return found


def make_tables(listing: ImageListing, done: list[chunks.Chunk]) -> Arrays:
    """The tables of images that lie one after the other."""
    sizes = numpy.concatenate([chunk.sizes for chunk in done]).astype("<i8")
    ends = numpy.cumsum(sizes)
    return {
        "starts": ends - sizes,
        "ends": ends,
        "shapes": numpy.concatenate([chunk.shapes for chunk in done]).astype("<i4"),
        "targets": listing.targets().astype("<i4"),
        "checksums": numpy.concatenate([chunk.checksums for chunk in done]).astype("<u4"),
    }


if __name__ == "__main__":
    run_main_and_exit(lambda: main(tyro.cli(PackOptions, description=__doc__)))
