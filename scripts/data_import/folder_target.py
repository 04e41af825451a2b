"""Images written as files: TO/train/<class>/<image> and TO/val/<class>/<image>."""

import os
from pathlib import Path

from benchmarks.common.data.contents import cached_contents
from benchmarks.common.data.fingerprint import cached_fingerprint
from benchmarks.common.data.listing import list_images
from benchmarks.common.system.errors import UserError
from benchmarks.common.system.files import sync_folder
from benchmarks.common.system.machine import num_cores
from scripts.data_import.journal import WORKSHOP, Total, make_total
from scripts.data_import.progress import Progress
from scripts.data_import.source_images import Shard, Source, image_checksum
from scripts.setup.check_data import check_image_folder, format_names


class FolderTarget:
    """kind: for the journal, so that an import of another kind does not go on with this one's files."""

    written_per_byte = 1.0

    def __init__(self, folder: Path, source: Source):
        self.kind = source.kind
        self.max_threads = 2 * num_cores()  # half of them wait for a disk
        self._folder, self._workshop = folder, folder / WORKSHOP
        self._parts = sorted({shard.part for shard in source.shards})
        self._flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_EXCL

    def refuse_existing(self) -> None:
        """Raises UserError where a part that the source has is in the folder already."""
        for part in self._parts:
            refuse_existing(self._folder / part)

    def go_on(self, finished: list[Shard]) -> None:
        """After a kill, there are images of shards that are not finished; they are written again."""
        del finished  # their images are there
        self._flags = self._flags & ~os.O_EXCL | os.O_TRUNC

    def write_shard(self, shard: Shard, progress: Progress) -> Total:
        """Raises UserError where two images have one name, and what reading raises."""
        num_images, num_bytes, checksum = 0, 0, 0
        folders: dict[str, str] = {}
        for image in shard.read():
            if image.class_name not in folders:
                folder = self._workshop / shard.part / image.class_name
                folder.mkdir(parents=True, exist_ok=True)
                folders[image.class_name] = str(folder)
            try:
                descriptor = os.open(f"{folders[image.class_name]}/{image.name}", self._flags, 0o666)
            except FileExistsError:
                raise UserError(f"{shard.name}: {image.name!r} of class {image.class_name} is there twice") from None
            with os.fdopen(descriptor, "wb", 0) as file:
                written = 0
                while written < len(image.content):
                    written += file.write(image.content[written:])
            num_images, num_bytes = num_images + 1, num_bytes + len(image.content)
            checksum += image_checksum(shard.part, image)
            progress.add(len(image.content), len(image.content))
        progress.add(shard.num_bytes - num_bytes, 0)  # what is in a shard beside its images
        return make_total(num_images, num_bytes, checksum)

    def put_in_place(self, totals: dict[str, Total]) -> None:
        """Rename the finished parts. Raises UserError where classes do not fit, or where images have one name."""
        places = {part: self._place(part) for part in ("train", "val")}
        for part, total in totals.items():
            if not places[part].is_dir():
                raise UserError(f"the source has no image of {part}")
            found = len(list_images(places[part]))
            if found != total.num_images:
                raise UserError(f"{total.num_images} images of {part} were read, and they have {found} different names")
        if all(place.is_dir() for place in places.values()):
            refuse_unknown_classes(*({*os.listdir(place)} for place in (places["train"], places["val"])))
        os.sync()  # once for all: a power cut after the renames must find every image
        for part in totals:
            if places[part] != self._folder / part:  # else a kill came between two renames
                refuse_existing(self._folder / part)
                os.rename(places[part], self._folder / part)
        sync_folder(self._folder)

    def _place(self, part: str) -> Path:
        return self._workshop / part if (self._workshop / part).is_dir() else self._folder / part

    def report(self, totals: dict[str, Total]) -> None:
        """Print what there is now."""
        for part, total in totals.items():
            folder = self._folder / part
            num_classes = sum(entry.is_dir() for entry in os.scandir(folder))
            print(f"{folder}: {total.num_images:,} images of {num_classes:,} classes, {total.num_bytes:,} bytes")
            print(f"  sum of SHA-256: {int(total.checksum, 16):064x}")
        try:
            check_image_folder(self._folder)
        except ValueError as error:
            print(f"not complete yet: {error}")
            return
        print(f"fingerprint {cached_fingerprint(self._folder)}, contents {cached_contents(self._folder)}")


def refuse_existing(path: Path) -> None:
    """Raises UserError."""
    if os.path.lexists(path):
        raise UserError(f"{path} is there already; remove it, or give another folder")


def refuse_unknown_classes(train: set[str], val: set[str]) -> None:
    """Raises UserError where val has classes that train lacks."""
    if unknown := val - train:
        raise UserError(f"val has classes that train lacks: {format_names(unknown)}; is train whole?")
