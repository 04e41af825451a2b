"""Pack a folder's images into one file for train/ and one for val/, which training maps instead of decoding JPEGs.

    python -m scripts.setup.pack --data data/imagenet-mini --pack full

full holds every pixel (ImageNet: about 700 GB); 256 the images shrunk to 256 pixels on the shorter side (350 GB);
jpeg256 those as JPEGs of quality 90 (31 GB). Only full trains on the same pixels as the folder. Started again after
it was stopped or killed, it goes on; a packed file of yours that is whole already is checked and kept. One that you
have not packed here, which may have come with the images, is refused: remove it first.
"""

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy
import tyro
from tqdm import tqdm

from benchmarks.common.config.config import Config
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import ImageListing, is_unchanged, list_images
from benchmarks.common.data.mapped_arrays import Arrays, DamagedFile, map_arrays
from benchmarks.common.data.packed import PackedSource, note_checked, note_written, pack_path, was_written
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import hold_lock, open_no_follow, read_regular_file, replace_atomically, sync_folder
from benchmarks.common.system.folders_of_others import make_own_folder
from benchmarks.common.system.options_as_typed import option_as_typed
from benchmarks.common.system.programs import run_main_and_exit
from scripts.options.data_options import PackOptions
from scripts.setup import chunks
from scripts.setup.check_data import check_image_folder
from scripts.setup.own_token import PRIVATE, forget_token, own_token
from scripts.setup.pack_file import flush, header_size, pack_metadata, write_tables

CHECK_PERIOD_S = 60  # whether the folder is still the one that was listed
MAX_JOURNAL_BYTES = 1 << 31  # of what a stopped run has noted
PACKING = "packing"  # what the token in a journal is of: a journal that came with the images could have other pixels
ANOTHER_FOLDER = "give another folder by PACKED"
NUM_SAMPLED_IMAGES = 200  # images whose sizes tell the size of all


def main(options: PackOptions) -> None:
    config = Config(data=options.data, loader="packed", pack=options.pack)
    refuse_links_in_data(config)
    root, began_ns = Path(options.data), time.time_ns()
    try:
        check_image_folder(root)
        listings = {split: list_images(root / split) for split in ("train", "val")}
        fingerprint = cached_fingerprint(root)
    except OSError as error:
        raise UserError(f"cannot read {root}: {error}; {option_as_typed('DATA')} must hold train/ and val/") from None
    todo = {split: one for split, one in listings.items() if not is_complete(pack_path(config, split), fingerprint)}
    sizes = {split: estimate_bytes(config, split, listing) for split, listing in todo.items()}
    if todo:
        check_folder(pack_path(config, "train").parent, sum(sizes.values()))
    for split, listing in todo.items():
        with lock_pack(pack_path(config, split)):
            write_pack(pack_path(config, split), listing, config.pack, fingerprint, began_ns)


def refuse_links_in_data(config: Config) -> None:
    """Raises UserError where the data set itself leads its packed files elsewhere, over files of the user's, and where
    one of its packed files is no regular file: opening a pipe would wait for ever."""
    folder = pack_path(config, "train").parent
    own = bool(os.environ.get("PACKED"))  # the user has named the folder
    for path in () if own else (folder.parent, folder, *folder.glob("*")):
        if path.is_symlink():
            raise UserError(f"{path} is a link, and nothing is packed through one; name the folder in PACKED")
    for path in (*folder.glob("train.*"), *folder.glob("val.*")):
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is not a regular file; remove it")


def is_complete(path: Path, fingerprint: str) -> bool:
    """Whether a packed file of these images is there; all of it is read.

    Raises UserError for one of other images in the folder that PACKED names, where it may be another data set's, and
    for one that this user has not packed, which may have other pixels under right checksums.
    """
    if not path.exists():
        return False
    try:
        metadata = map_arrays(path)[0]  # of whatever version it is
        if (metadata.get("fingerprint"), metadata.get("part")) != (fingerprint, path.stem):
            if os.environ.get("PACKED"):
                raise UserError(f"{path} is of other images; give another folder by PACKED, or remove it")
            raise DamagedFile("it is of other images")
        pack = PackedSource(path)
        pack.check(f"checking {path.name}")
    except (OSError, DamagedFile, KeyError, ValueError) as error:
        print(f"{path} is written anew: {error}")
        return False
    if not was_written(path):
        raise UserError(
            f"{path} is whole, but nothing says that you packed it: it may have come with the images, and have other "
            "pixels; remove it, and run ./bench data pack again, or train on it as it is"
        )
    note_checked(path)
    forget_token(path, PACKING)  # of a run that was killed after its last rename
    print(f"{path} is whole: {len(pack)} images")
    return True


def estimate_bytes(config: Config, split: str, listing: ImageListing) -> int:
    """Bytes that packing will write, from a sample; prints them. What a stopped run has written is not counted."""
    some, data = range(0, len(listing), max(1, len(listing) // NUM_SAMPLED_IMAGES)), os.path.realpath(config.data)
    with ThreadPoolExecutor() as pool:
        stored = pool.map(lambda index: len(chunks.encode_image(listing.path(index), config.pack, data)[0]), some)
        mean = sum(tqdm(stored, f"sizing {split}", len(some), delay=2, disable=None, leave=False)) / len(some)
    size, there = int(mean * len(listing)), pack_path(config, split).with_suffix(".part")
    print(f"{split}: {len(listing)} images, about {size / 1e9:.3g} GB as {config.pack}")
    return max(0, size - (there.stat().st_size if there.exists() else 0))


def check_folder(folder: Path, size: int) -> None:
    """Make the folder. Raises UserError where it cannot be written, another user may change or replace it, or its disk
    has less than `size` bytes."""
    try:
        make_own_folder(folder, ANOTHER_FOLDER)
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


def write_pack(path: Path, listing: ImageListing, kind: str, fingerprint: str, began_ns: int) -> None:
    """Write chunk after chunk to <name>.part, each noted in <name>.journal, then the tables and the header.

    Raises UserError where the folder changed since it was listed, or one of its files since began_ns, and for half a
    packed file of other images in the folder that PACKED names.
    """
    part, journal = path.with_suffix(".part"), path.with_suffix(".journal")
    metadata = pack_metadata(kind, listing, fingerprint)
    header_bytes = header_size(metadata)
    plan = json.dumps([metadata, listing.times, header_bytes, own_token(path, PACKING)])
    refuse_half_pack_of_other_images(journal, plan)
    done, size = read_journal(journal, plan), part.stat().st_size if part.exists() else 0
    if size < (written := header_bytes + sum(sum(chunk.sizes) for chunk in done)):
        done, written = [], header_bytes  # fewer bytes than the journal lists: some were lost
    num_done = sum(len(chunk.sizes) for chunk in done)
    if done:
        print(f"going on after {num_done} images")
    try:
        # without a note that was cut off; nobody else may read the token in it
        lines = "\n".join([plan, *map(journal_line, done)]) + "\n"
        replace_atomically(journal, lambda file: file.write(lines.encode()), mode=PRIVATE)
        with (
            open(part, "r+b" if done else "wb", opener=open_no_follow) as file,
            open(journal, "a", opener=open_no_follow) as notes,
        ):
            sync_folder(part.parent)  # or a power cut could leave the journal without the file
            file.truncate(written)
            file.seek(0, os.SEEK_END)
            done += write_chunks(file, notes, listing, chunks.encode_chunks(listing, kind, num_done, began_ns))
            write_tables(file, metadata, make_tables(listing, done), header_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise UserError(
                f"cannot pack {error.filename or path}: {error.strerror}; run ./bench data pack again"
            ) from None
        raise UserError(f"the disk of {path.parent} is full; free space, and ./bench data pack goes on") from None
    check_written(part, journal)
    note_written(path, part)  # before it is there: a kill may come between
    os.replace(part, path)
    sync_folder(path.parent)
    forget_token(path, PACKING)
    journal.unlink()
    note_checked(path)
    bad = [index for index, size in enumerate(size for chunk in done for size in chunk.sizes) if not size]
    for index in bad[:3]:
        print(f"warning: {listing.path(index)!r} is not a readable image; a run that meets it says so")
    print(f"{path}: {len(listing)} images, {path.stat().st_size / 1e9:.3g} GB, {len(bad)} of them not readable")


def write_chunks(
    file: BinaryIO, notes: TextIO, listing: ImageListing, made: Iterable[chunks.Chunk]
) -> list[chunks.Chunk]:
    """Write each chunk while the next is made; returns them. Raises UserError where the folder has changed."""
    written, look_again = [], time.monotonic() + CHECK_PERIOD_S

    def write(chunk: chunks.Chunk) -> chunks.Chunk:
        file.writelines(chunk.stored)
        flush(file)  # first the bytes, then the note that they are there
        chunk.stored = []
        notes.write(journal_line(chunk) + "\n")
        flush(notes)
        return chunk

    with ThreadPoolExecutor(1) as writer:
        for chunk in chunks.map_in_order(writer, write, made, 1):
            written.append(chunk)
            if time.monotonic() >= look_again:
                check_unchanged(listing)
                look_again = time.monotonic() + CHECK_PERIOD_S
    check_unchanged(listing)
    return written


def check_unchanged(listing: ImageListing) -> None:
    if not is_unchanged(listing.folder, json.loads(listing.times)):
        raise UserError(f"{listing.folder} changed while it was packed; run ./bench data pack again")


def check_written(part: Path, journal: Path) -> None:
    """Read the finished file back, also what an earlier run wrote of it. Raises UserError, and drops the journal."""
    try:
        PackedSource(part).check(f"checking {part.name}")
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
    with contextlib.suppress(OSError, ValueError):  # the last note may have been cut off
        lines = read_regular_file(journal, MAX_JOURNAL_BYTES).decode().split("\n")
        if lines[0] != plan:
            return []
        # a note without its line end was cut off, even where it still reads as JSON
        found.extend(chunks.Chunk(*json.loads(line)) for line in lines[1:-1])
    return found


def refuse_half_pack_of_other_images(journal: Path, plan: str) -> None:
    """Raises UserError where this user has begun to pack other images into the folder that PACKED names: it may have
    taken hours."""
    if not os.environ.get("PACKED"):
        return
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        begun, here = (
            json.loads(text.partition("\n")[0])
            for text in (read_regular_file(journal, MAX_JOURNAL_BYTES).decode(), plan)
        )
        same_user, same_images = begun[-1] == here[-1], begun[0]["fingerprint"] == here[0]["fingerprint"]
        if same_user and not same_images:
            part = journal.with_suffix(".part")
            raise UserError(
                f"{part} is half a pack of other images; give another folder by PACKED, or remove {journal}"
            )


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
