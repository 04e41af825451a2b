"""Images written as files: TO/train/<class>/<image> and TO/val/<class>/<image>."""

import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common.errors import UserError
from benchmarks.common.listing import fingerprint, format_names, list_images
from scripts.data.check import check_image_folder
from scripts.data.entries import Count, Entry, Shard, Source

WORKSHOP = ".importing"  # the folder below TO with everything that is not finished


class FolderTarget:
    """kind: of source and target, for the journal. written_per_byte: bytes written for a byte of the source."""

    written_per_byte = 1.0

    def __init__(self, folder: Path, source: Source):
        self.kind, self.workshop = source.kind, folder / WORKSHOP
        self._folder = folder
        self._splits = sorted({shard.split for shard in source.shards})
        self._mode = "xb"

    def refuse_existing(self) -> None:
        for split in self._splits:
            refuse_existing(self._folder / split)

    def go_on(self, finished: list[tuple[Shard, Count]]) -> None:
        """After a kill, images of unfinished shards are written again."""
        del finished  # their images are there
        self._mode = "wb"

    def write_shard(self, shard: Shard, images: Iterator[Entry], count: Count) -> None:
        """Raises UserError where two images have one name."""
        del count
        folders: dict[str, Path] = {}
        for image in images:
            if image.class_name not in folders:
                folders[image.class_name] = self.workshop / shard.split / image.class_name
                folders[image.class_name].mkdir(parents=True, exist_ok=True)
            try:
                with open(folders[image.class_name] / image.name, self._mode) as file:
                    file.write(image.content)
            except FileExistsError:
                raise UserError(
                    f"{shard.name}: {image.name!r} of class {image.class_name} is there twice; remove the wrong one"
                ) from None

    def put_in_place(self, counts: dict[str, Count]) -> None:
        """Raises UserError where val has other classes than train, or images have one name."""
        folders = {split: self._folder_of(split) for split in ("train", "val")}
        for split, count in counts.items():
            found = len(list_images(folders[split]))
            if found != count.num_images:
                raise UserError(
                    f"{count.num_images} images of {split} were read, and they have {found} different names; "
                    f"remove {self.workshop} and those that are there twice"
                )
        if all(folder.is_dir() for folder in folders.values()):
            refuse_unknown_classes(*({*os.listdir(folder)} for folder in (folders["train"], folders["val"])))
        for split in counts:
            if folders[split] != self._folder / split:  # else a kill came between two renames
                os.rename(folders[split], self._folder / split)

    def _folder_of(self, split: str) -> Path:
        return self.workshop / split if (self.workshop / split).is_dir() else self._folder / split

    def report(self, counts: dict[str, Count]) -> None:
        for split, count in counts.items():
            folder = self._folder / split
            num_classes = sum(entry.is_dir() for entry in os.scandir(folder))
            print(f"{folder}: {count.num_images:,} images of {num_classes:,} classes, {count.num_bytes:,} bytes")
        try:
            check_image_folder(self._folder)
        except UserError as error:
            print(f"not complete yet: {error}")
            return
        print(f"fingerprint {fingerprint(self._folder)}")


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise UserError(f"{path} is there already; remove it, or give another folder")


def refuse_unknown_classes(train: set[str], val: set[str]) -> None:
    if unknown := val - train:
        raise UserError(f"val has classes that train lacks: {format_names(unknown)}; is train whole?")
