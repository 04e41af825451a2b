"""Bring ImageNet, as it is had from hubs and from image-net.org, into train/<class>/ and val/<class>/.

    python -m scripts.data_import.import_images FROM TO

FROM: a folder with Parquet files, WebDataset's tars, ILSVRC2012's tars and devkit, or a flat val folder. Bytes are
copied as they are, and names are ImageNet's where the source has them. All is written below TO/.importing, and renamed
when it is complete: TO never has half a data set. Killed at any moment, the same command goes on.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import tyro
from tqdm import tqdm

from benchmarks.common.data.contents import cached_contents
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import list_images
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import locked, make_folder, sync_folder
from benchmarks.common.system.machine import num_cores
from benchmarks.common.system.programs import run_program
from scripts.data_import.find_source import find_source
from scripts.data_import.journal import Journal, Total, read_journal
from scripts.data_import.source_images import Shard, Source, SourceImage
from scripts.options.data_options import ImportOptions
from scripts.setup.check_data import check_image_folder, format_names

WORKSHOP = ".importing"
MAX_THREADS = 32
CHECK_BYTES = 1 << 24  # that all threads write between two looks at the disk
RESERVE_BYTES = 1 << 26  # that stay free: images end in blocks that they do not fill
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)

FreeBytes = Callable[[Path], int]


class Cancelled(Exception):
    """Another thread has failed."""


class Progress:
    """How far all threads are, on the terminal; stops them where the disk will not take what is left."""

    def __init__(self, folder: Path, num_bytes: int, done_bytes: int, free_bytes: FreeBytes):
        self._folder, self._free_bytes = folder, free_bytes
        self._left, self._unchecked = num_bytes - done_bytes, 0
        self._lock, self._cancelled = threading.Lock(), False
        self._bar = tqdm(desc="importing", total=num_bytes, initial=done_bytes, unit="B", unit_scale=True, disable=None)

    def check_disk(self) -> None:
        """Raises UserError where less is free than is left to write."""
        free, needed = self._free_bytes(self._folder), self._left + RESERVE_BYTES
        if free < needed:
            raise UserError(
                f"{needed / 1e9:.2f} GB are needed in {self._folder}, and {free / 1e9:.2f} GB are free; "
                "free space, and the same command goes on"
            )

    def add(self, num_bytes: int) -> None:
        """Count bytes of the source. Raises Cancelled after cancel(), and UserError as check_disk does."""
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._left -= num_bytes
            self._unchecked += num_bytes
            self._bar.update(num_bytes)
            if self._unchecked >= CHECK_BYTES:
                self._unchecked = 0
                self.check_disk()

    def cancel(self) -> None:
        """Makes every other thread stop at its next image."""
        with self._lock:
            self._cancelled = True

    def close(self) -> None:
        self._bar.close()


def main(options: ImportOptions, free_bytes: FreeBytes = lambda folder: shutil.disk_usage(folder).free) -> int:
    """Import, and print what there is now. free_bytes: of the disk of a folder."""
    source, target = find_source(options.source, options.classes), options.to
    workshop = target / WORKSHOP
    try:
        if os.path.lexists(workshop):
            refuse_foreign(workshop, options.source)
        else:
            refuse_existing(source, target)
            make_folder(target)
            os.mkdir(workshop, 0o700)  # whatever the umask: only the user steers what is written below it
        with locked(workshop / "lock", limit_s=0):
            totals = import_source(source, target, workshop, free_bytes)
            shutil.rmtree(workshop)
    except TimeoutError:
        raise UserError(f"another import is writing {target}; wait for it") from None
    except OSError as error:
        if error.errno in FULL_DISK:
            raise UserError(f"the disk of {target} is full; free space, and the same command goes on") from None
        raise UserError(
            f"cannot import {error.filename or options.source}: {error.strerror or error}; the same command goes on"
        ) from None
    report(target, totals)
    return 0


def refuse_foreign(workshop: Path, given: Path) -> None:
    """Raises UserError where TO/.importing may not be of an import of this user's, and OSError. given: FROM.

    What came with a download does not know this boot; after another boot all would be written again anyway.
    """
    again = "remove it, and the import begins again"
    status = os.lstat(workshop)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise UserError(f"{workshop} is a link, no folder, or others can write to it; {again}")
    for link in find_links(str(workshop)):
        raise UserError(f"{link!r} is a link, and nothing is written through one; remove {workshop}")
    source = given.resolve() if given.is_dir() else given.resolve().parent
    if workshop.resolve().is_relative_to(source) and read_journal(workshop / "journal")[0][1:] != [boot_id()]:
        raise UserError(f"{workshop} may have come with {given}; {again}")


def find_links(folder: str) -> Iterator[str]:
    """Symbolic links below a folder. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                yield entry.path
            elif entry.is_dir(follow_symlinks=False):
                yield from find_links(entry.path)


def boot_id() -> str:
    """Linux's name of the time since the machine has started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def import_source(source: Source, target: Path, workshop: Path, free_bytes: FreeBytes) -> dict[str, Total]:
    """Write what is left of the source, check it, and rename it into its place; returns the total of each part."""
    journal = Journal(workshop / "journal", source, boot_id())
    left = [shard for shard in source.shards if journal.total(shard) is None]
    if left:
        refuse_existing(source, target)
    num_bytes = sum(shard.num_bytes for shard in source.shards)
    done_bytes = num_bytes - sum(shard.num_bytes for shard in left)
    print(f"{source.kind}: {len(source.shards)} shards, {num_bytes / 1e9:.3g} GB", flush=True)
    if journal.goes_on:
        print(f"going on after {len(source.shards) - len(left)} shards", flush=True)
    progress = Progress(target, num_bytes, done_bytes, free_bytes)
    with contextlib.closing(journal), contextlib.closing(progress):
        if left:
            progress.check_disk()
            write_shards(left, workshop, journal, progress)
    totals = {part: Total() for part in sorted({shard.part for shard in source.shards})}
    for shard in source.shards:
        totals[shard.part] = totals[shard.part].plus(journal.total(shard) or Total())
    put_in_place(target, workshop, totals)
    return totals


def refuse_existing(source: Source, target: Path) -> None:
    """Raises UserError where a part that the source has is in the target already."""
    for part in sorted({shard.part for shard in source.shards}):
        refuse_existing_part(target / part)


def refuse_existing_part(folder: Path) -> None:
    if os.path.lexists(folder):
        raise UserError(f"{folder} is there already; remove it, or give another folder")


def write_shards(shards: list[Shard], workshop: Path, journal: Journal, progress: Progress) -> None:
    """Write the images of all shards, several shards at once; each finished one is noted."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_TRUNC if journal.goes_on else os.O_EXCL  # a kill leaves images of a shard that is not finished
    num_threads = min(MAX_THREADS, 2 * num_cores(), len(shards))
    with ThreadPoolExecutor(num_threads) as pool:
        waiting = {pool.submit(write_shard, shard, workshop, flags, progress): shard for shard in shards}
        try:
            for finished in as_completed(waiting):
                journal.add(waiting[finished], finished.result())
        except BaseException:
            progress.cancel()
            pool.shutdown(cancel_futures=True)
            raise


def write_shard(shard: Shard, workshop: Path, flags: int, progress: Progress) -> Total:
    """Write the images of one shard. Raises UserError where two images have one name, and what reading raises."""
    num_images, num_bytes, checksum = 0, 0, 0
    folders: dict[str, str] = {}
    for image in shard.read():
        if image.class_name not in folders:
            folder = workshop / shard.part / image.class_name
            folder.mkdir(parents=True, exist_ok=True)
            folders[image.class_name] = str(folder)
        try:
            descriptor = os.open(f"{folders[image.class_name]}/{image.name}", flags, 0o666)
        except FileExistsError:
            raise UserError(f"{shard.name}: {image.name!r} of class {image.class_name} is there twice") from None
        with os.fdopen(descriptor, "wb", 0) as file:
            written = 0
            while written < len(image.content):
                written += file.write(image.content[written:])
        num_images, num_bytes = num_images + 1, num_bytes + len(image.content)
        checksum += image_checksum(shard.part, image)
        progress.add(len(image.content))
    progress.add(shard.num_bytes - num_bytes)  # what is in a shard beside its images
    return Total().plus(Total(num_images, num_bytes, f"{checksum:x}"))


def image_checksum(part: str, image: SourceImage) -> int:
    """SHA-256 of an image's path and its bytes."""
    digest = hashlib.sha256(f"{part}/{image.class_name}/{image.name}\0".encode())
    digest.update(image.content)
    return int.from_bytes(digest.digest(), "big")


def put_in_place(target: Path, workshop: Path, totals: dict[str, Total]) -> None:
    """Rename the finished parts. Raises UserError where classes do not fit, or where images have one name."""
    places = {part: workshop / part if (workshop / part).is_dir() else target / part for part in ("train", "val")}
    for part, total in totals.items():
        if not places[part].is_dir():
            raise UserError(f"the source has no image of {part}")
        found = len(list_images(places[part]))
        if found != total.num_images:
            raise UserError(f"{total.num_images} images of {part} were read, and they have {found} different names")
    if all(place.is_dir() for place in places.values()):
        train, val = ({*os.listdir(place)} for place in (places["train"], places["val"]))
        if unknown := val - train:
            raise UserError(f"val has classes that train lacks: {format_names(unknown)}; is train whole?")
    os.sync()  # once for all: a power cut after the renames must find every image
    for part in totals:
        if places[part] != target / part:  # else a kill came between two renames
            refuse_existing_part(target / part)
            os.rename(places[part], target / part)
    sync_folder(target)


def report(target: Path, totals: dict[str, Total]) -> None:
    for part, total in totals.items():
        num_classes = sum(entry.is_dir() for entry in os.scandir(target / part))
        print(f"{target / part}: {total.num_images:,} images of {num_classes:,} classes, {total.num_bytes:,} bytes")
        print(f"  sum of SHA-256: {int(total.checksum, 16):064x}")
    try:
        check_image_folder(target)
    except ValueError as error:
        print(f"not complete yet: {error}")
        return
    print(f"fingerprint {cached_fingerprint(target)}, contents {cached_contents(target)}")


if __name__ == "__main__":
    run_program(lambda: main(tyro.cli(ImportOptions, description=__doc__)))
